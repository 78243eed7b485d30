package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"service/web/portal"
	"service/webhook"
)

// portal parses the flags for the appearance of the portal.
func (f *configErrors) portal(c *serveFlags) portal.Config {
	p := portal.Config{Name: c.PortalName, Color: c.PortalColor}
	if c.PortalLogo != "" {
		logo, err := readLogo(c.PortalLogo)
		if err != nil {
			f.add("portal-logo", "%s: %v", c.PortalLogo, err)
		}
		p.Logo = logo
	}
	p.Check(f.add)
	return p
}

// readLogo reads a logo file. It reads at most one byte more than the maximum size.
func readLogo(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		var p *fs.PathError
		if errors.As(err, &p) {
			err = p.Err
		}
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, portal.MaxLogo+1))
}

type portalLinkCmd struct {
	dataFlag
	Program string `placeholder:"ID" help:"Program (tenant) whose portal the link opens (required)."`
	Role    string `default:"read" placeholder:"R" help:"What the partner may do: read, or write."`
	Expires string `default:"24h" placeholder:"D" help:"Lifetime of the link, 1m to 7d."`
}

func (c *portalLinkCmd) Run(ctx context.Context, std Streams) error {
	now := time.Now()
	request := webhook.NewPortalLink{ProgramID: c.Program, Role: webhook.PortalRole(c.Role)}
	var f configErrors
	if after := f.duration("expires", c.Expires, webhook.MinPortalLinkLife, webhook.MaxPortalLinkLife); f == nil {
		request.ExpiresAt = now.Add(after).Truncate(time.Millisecond)
	}
	for _, v := range request.Check(now) {
		f.add(v.Parameter, "%s", v.Detail)
	}
	if err := f.err(); err != nil {
		return err
	}
	var link struct {
		webhook.PortalLink
		URL string
	}
	path := "/v2/programs/" + c.Program + "/portal_links"
	body := map[string]any{"role": request.Role, "expires_at": request.ExpiresAt}
	if err := c.post(ctx, "; a link leads to a running server", path, body, &link); err != nil {
		return err
	}
	fmt.Fprintf(std.Err, "Works once, until %s. Anyone with it can open the portal of %s (%s).\n", webhook.FormatTime(link.ExpiresAt),
		link.ProgramID, link.Role)
	_, err := fmt.Fprintln(std.Out, link.URL)
	return err
}

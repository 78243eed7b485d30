package cli

import (
	"fmt"
	"strings"

	"github.com/alecthomas/kong"
)

// examples are command lines for the help of each command. [TestExamples] parses them.
var examples = map[string]string{
	"serve": `service serve --demo
service serve --allow-http --allow-destination 127.0.0.0/8
service serve --domain hooks.example.com --acme-email ops@example.com`,
	"promote": `service promote
service promote --force`,
	"publish": `service publish events.ndjson --token-file token --ca data/ca.pem
echo '{"name":"channel_updated","version":"1","channel_id":7}' | service publish`,
	"listen": `service listen --secret-file signing.secret
service listen --forward http://127.0.0.1:3000/hook
service listen --pull 0198f6a2-7c1e-7d4b-9a41-3f6be7c2d1e5 --token-file token --secret-file signing.secret --forward http://127.0.0.1:3000/hook`,
	"filter test": `service filter test filters.json --program acme
service filter test filters.json --from 2026-03-01 --token-file token --ca data/ca.pem`,
	"token create": `service token create --program acme --user me --scope events.write
service token create --program acme --user ci --scope webhooks.read --expires 90d
service token create --scope platform --user backend`,
	"event erase": `service event erase --program acme --where user_id=4711 --dry-run
service event erase --program acme --where user_id=4711`,
	"token list":   `service token list`,
	"token revoke": `service token revoke 0198f6a3-10d2-7a90-b1c3-0f4e6d7a8b9c`,
	"program list": `service program list`,
	"program export": `service program export acme acme.export
service program export acme acme.export --passphrase-file passphrase`,
	"program import": `service program import acme.export`,
	"program move": `service program move acme --to https://hooks2.example.com --token-file platform.token
service program move acme --to https://10.0.0.7:8443 --token-file platform.token --ca-file ca.pem`,
	"program delete": `service program delete acme`,
	"portal-link": `service portal-link --program acme --role write
service portal-link --program acme --expires 7d`,
	"apply": `service apply -f platform.yml --dry-run
service apply -f platform.yml`,
	"audit list": `service audit list --limit 20
service audit list --action token.create --from 2026-03-01`,
	"audit export": `service audit export audit.ndjson`,
	"audit verify": `service audit verify
service audit verify audit.ndjson`,
	"admin create": `service admin create --email ana@example.com
service admin create --email bo@example.com --role viewer --password-file password`,
	"admin setup-link":     `service admin setup-link`,
	"admin reset-password": `service admin reset-password --email ana@example.com`,
	"admin list":           `service admin list`,
	"admin remove":         `service admin remove --email bo@example.com`,
	"admin logout-all": `service admin logout-all
service admin logout-all --email bo@example.com`,
	"backup create": `service backup create backup.tar
service backup create backup.tar --passphrase-file passphrase --force`,
	"backup verify": `service backup verify backup.tar`,
	"restore": `service restore
service restore --at 2026-03-14T08:24:57Z --force
service restore --from backup.tar --data restored`,
	"release":         `service release`,
	"salvage":         `service salvage --from /mnt/old/data --dry-run`,
	"compact":         `service compact`,
	"key rotate":      `service key rotate`,
	"config show":     `service config show --config config.yml`,
	"config validate": `service config validate --config config.yml`,
	"config example":  `service config example > config.yml`,
	"doctor": `service doctor
service doctor --json`,
	"healthcheck": `service healthcheck`,
	"bench": `service bench
service bench --time 10s --rounds 3`,
	"completion": `service completion bash`,
	"man":        `service man | man -l -`,
	"version":    `service version`,
}

// exampleHelp returns the examples of a command for its help; nothing for a group of commands.
func exampleHelp(n *kong.Node, c colors) string {
	text, ok := examples[strings.TrimSpace(pathOf(n))]
	if !ok {
		return ""
	}
	var b strings.Builder
	title := "Examples:"
	if !strings.Contains(text, "\n") {
		title = "Example:"
	}
	fmt.Fprintf(&b, "\n%s\n", c.paint(bold, title))
	for line := range strings.Lines(spelled(text, commandName())) {
		fmt.Fprintf(&b, "  %s\n", strings.TrimSuffix(line, "\n"))
	}
	return b.String()
}

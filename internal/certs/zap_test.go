package certs

import (
	"bytes"
	"io"
	"log/slog"
	"testing"

	"go.uber.org/zap"
)

// TestZapLogger checks the levels and fields of forwarded messages.
func TestZapLogger(t *testing.T) {
	var log bytes.Buffer
	options := &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}
	z := newZapLogger(slog.New(slog.NewTextHandler(&log, options)), "known", "noisy")
	z.With(zap.String("b", "2")).Named("part").Info("as it should", zap.Int("a", 1))
	z.Warn("odd", zap.Error(io.EOF))
	z.Error("failed", zap.Strings("c", []string{"x y", "z\n"}))
	z.Error("known")
	z.Named("noisy").Error("whatever")
	const want = `level=DEBUG msg="as it should" part=part a=1 b=2
level=WARN msg=odd error=EOF
level=WARN msg=failed c="[x y z\n]"
level=DEBUG msg=known
level=DEBUG msg=whatever part=noisy
`
	if got := log.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	log.Reset()
	options.Level = slog.LevelInfo
	z = newZapLogger(slog.New(slog.NewTextHandler(&log, options)), "known")
	z.Info("as it should")
	z.Error("known")
	if log.Len() > 0 {
		t.Errorf("got %s, want no debug messages", &log)
	}
}

package certs

import (
	"context"
	"log/slog"
	"maps"
	"slices"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// newZapLogger returns a zap logger, for a library, that forwards to logger. It logs messages below
// warnings at debug level, and likewise messages that the caller reports itself: quiet lists
// messages, or names of loggers.
func newZapLogger(logger *slog.Logger, quiet ...string) *zap.Logger {
	return zap.New(&zapCore{handler: logger.Handler(), quiet: quiet})
}

// zapCore is a [zapcore.Core] that writes to a slog.Handler.
type zapCore struct {
	handler slog.Handler
	quiet   []string
	fields  []zapcore.Field // from With
}

// level returns the level of an entry in the service's log.
func (c *zapCore) level(e *zapcore.Entry) slog.Level {
	switch {
	case e.Level < zapcore.WarnLevel, slices.Contains(c.quiet, e.Message), slices.Contains(c.quiet, e.LoggerName):
		return slog.LevelDebug
	}
	return slog.LevelWarn // a library's errors need not be errors of the service
}

// Enabled implements [zapcore.LevelEnabler].
func (c *zapCore) Enabled(level zapcore.Level) bool {
	return c.handler.Enabled(context.Background(), c.level(&zapcore.Entry{Level: level}))
}

// With implements [zapcore.Core].
func (c *zapCore) With(fields []zapcore.Field) zapcore.Core {
	return &zapCore{c.handler, c.quiet, slices.Concat(c.fields, fields)}
}

// Check implements [zapcore.Core].
func (c *zapCore) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.handler.Enabled(context.Background(), c.level(&e)) {
		return to.AddCore(e, c)
	}
	return to
}

// Write implements [zapcore.Core].
func (c *zapCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	r := slog.NewRecord(e.Time, c.level(&e), e.Message, 0)
	if e.LoggerName != "" {
		r.AddAttrs(slog.String("part", e.LoggerName))
	}
	values := zapcore.NewMapObjectEncoder()
	for _, f := range slices.Concat(c.fields, fields) {
		f.AddTo(values)
	}
	for _, name := range slices.Sorted(maps.Keys(values.Fields)) {
		r.AddAttrs(slog.Any(name, values.Fields[name]))
	}
	return c.handler.Handle(context.Background(), r)
}

// Sync implements [zapcore.Core].
func (*zapCore) Sync() error { return nil }

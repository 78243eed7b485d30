package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
)

// statement is a prepared statement of the writer's connection. It calls the driver
// directly, because the bookkeeping of database/sql takes a tenth of a statement's
// time. The leader of the [Writer] owns the statement.
type statement struct {
	conn *sql.Conn
	st   driver.StmtExecContext
	// overwrite is set for a write to a table of Config.Overwrite.
	overwrite bool

	// State of the current run, kept here to avoid allocations.
	args   []driver.NamedValue
	result driver.Result
	run    func(any) error
}

func prepare(conn *sql.Conn, query string) (*statement, error) {
	s := &statement{conn: conn}
	err := conn.Raw(func(c any) error {
		prepared, err := c.(driver.ConnPrepareContext).PrepareContext(context.Background(), query)
		if err != nil {
			return err
		}
		s.st = prepared.(driver.StmtExecContext)
		return nil
	})
	s.run = func(any) (err error) {
		s.result, err = s.st.ExecContext(context.Background(), s.args)
		return err
	}
	return s, err
}

// exec runs the statement. It accepts the argument types of database/sql.
func (s *statement) exec(args []any) (driver.Result, error) {
	s.args = s.args[:0]
	for i, a := range args {
		v, err := value(a)
		if err != nil {
			return nil, fmt.Errorf("argument %d: %w", i+1, err)
		}
		s.args = append(s.args, driver.NamedValue{Ordinal: i + 1, Value: v})
	}
	err := s.conn.Raw(s.run)
	r := s.result
	s.result = nil
	clear(s.args) // release what they refer to
	return r, err
}

// value converts an argument to one of the types that a driver accepts.
func value(arg any) (driver.Value, error) {
	switch v := arg.(type) {
	case nil, int64, float64, bool, []byte, string:
		return v, nil
	case int:
		return int64(v), nil
	}
	return driver.DefaultParameterConverter.ConvertValue(arg)
}

func (s *statement) close() error {
	return s.conn.Raw(func(any) error {
		return s.st.(driver.Stmt).Close()
	})
}

func closeAll(statements map[string]*statement) (err error) {
	for _, s := range statements {
		err = errors.Join(err, s.close())
	}
	return err
}

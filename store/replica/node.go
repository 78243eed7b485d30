package replica

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
)

// ErrUnconditional means that a bucket ignores the conditions of writes, so that two nodes could
// acquire one lease.
var ErrUnconditional = errors.New("the bucket ignores conditional writes (If-Match, If-None-Match), which a lease needs: " +
	"use another bucket")

const (
	nodesFolder = "nodes" // folder of the objects of nodes, next to the lease
	// maxNodeBytes limits the size of an object that another node wrote.
	maxNodeBytes = 16 << 10
	// maxNodes limits how many nodes Nodes returns.
	maxNodes = 100
)

// NodeState is the sign of life that a standby leaves in the bucket. It is input from outside.
type NodeState struct {
	Host        string    `json:"host"`
	SeenAt      time.Time `json:"seen_at"` // by its clock
	LagSeconds  *float64  `json:"lag_seconds"`
	CanTakeOver bool      `json:"can_take_over"`
	Reason      string    `json:"reason,omitempty"`   // why it cannot
	Warning     string    `json:"warning,omitempty"`  // what else is wrong with the standby
	OldData     []string  `json:"old_data,omitempty"` // data that exists only in directories of earlier tenures
}

// Node is the object of this node in the bucket. By writing it, a node proves that it could write
// the lease. One goroutine may use it.
type Node struct {
	lease  *Lease
	key    string
	etag   string // of the object as last seen, "" for none
	proven bool   // the bucket respects conditions
}

// NewNode returns the object of the node with this data directory. It does no I/O in the bucket.
func (l *Lease) NewNode() (*Node, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(l.cfg.Dir)
	if err != nil {
		return nil, err
	}
	hash := sha256.Sum256([]byte(host + "\x00" + dir)) // a host may have several nodes
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '.' {
			return r
		}
		return '_'
	}, host)
	return &Node{lease: l, key: nodesPrefix(l.bucket.key) + name + "-" + hex.EncodeToString(hash[:4]) + ".json"}, nil
}

// nodesPrefix returns the prefix of the objects of nodes, for the key of the lease.
func nodesPrefix(leaseKey string) string {
	return strings.TrimSuffix(leaseKey, leaseName) + nodesFolder + "/"
}

// Write writes the object of the node, and reads the lease. Without an error the node could read
// and write the lease. The first call also checks that the bucket respects conditions: the error
// wraps [ErrUnconditional] if it does not.
func (n *Node) Write(ctx context.Context, s NodeState) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	s.Host, s.SeenAt = host, time.Now().UTC()
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if _, err := n.lease.State(ctx); err != nil && !errors.Is(err, ErrLeaseDamaged) {
		return err
	}
	if err = n.put(ctx, text, n.etag); errors.Is(err, errLeaseChanged) { // this node wrote it before, or it was deleted
		reading, cancel := context.WithTimeout(ctx, n.lease.timeout)
		defer cancel()
		if _, n.etag, err = n.lease.bucket.get(reading, n.key, maxNodeBytes); err == nil {
			err = n.put(ctx, text, n.etag)
		}
	}
	if err == nil && !n.proven {
		err = n.prove(ctx, text)
	}
	if err != nil {
		return fmt.Errorf("write %s in the bucket: %w", n.key, err)
	}
	return nil
}

// prove checks that writes whose condition does not hold fail.
func (n *Node) prove(ctx context.Context, text []byte) error {
	for _, wrong := range []string{`"00000000000000000000000000000000"`, ""} {
		switch err := n.put(ctx, text, wrong); {
		case err == nil:
			return ErrUnconditional
		case !errors.Is(err, errLeaseChanged):
			return err
		}
	}
	n.proven = true
	return nil
}

// put writes the object if it has the ETag old, or if there is none and old is "".
func (n *Node) put(ctx context.Context, text []byte, old string) error {
	ctx, cancel := context.WithTimeout(ctx, n.lease.timeout)
	defer cancel()
	etag, err := n.lease.bucket.put(ctx, n.key, text, &old)
	if err == nil {
		n.etag = etag
	}
	return err
}

// Nodes returns the signs of life of all standbys of a replica in a bucket, without those that
// cannot be parsed. Any writer of the bucket may have written them.
func Nodes(ctx context.Context, cfg *Config) (all []NodeState, err error) {
	if !cfg.IsS3() {
		return nil, nil
	}
	l, err := NewLease(ctx, LeaseConfig{Replica: cfg})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	client, err := l.bucket.client(ctx)
	if err != nil {
		return nil, err
	}
	listed, err := client.ListObjectsV2(ctx, &awss3.ListObjectsV2Input{
		Bucket: &l.bucket.name, Prefix: aws.String(nodesPrefix(l.bucket.key)), MaxKeys: aws.Int32(maxNodes),
	})
	if err != nil {
		return nil, fmt.Errorf("list the replica's nodes: %w", err)
	}
	for _, object := range listed.Contents {
		text, _, err := l.bucket.get(ctx, aws.ToString(object.Key), maxNodeBytes)
		if err != nil {
			return all, fmt.Errorf("read the replica's nodes: %w", err)
		}
		var s NodeState
		if json.Unmarshal(text, &s) != nil {
			continue
		}
		if at := aws.ToTime(object.LastModified); !at.IsZero() {
			s.SeenAt = at // by the clock of the bucket
		}
		all = append(all, s)
	}
	return all, nil
}

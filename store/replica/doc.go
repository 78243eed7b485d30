// Package replica keeps a copy of the database elsewhere, in a directory or in
// an S3 bucket, with Litestream, and restores from it. It is the only importer
// of Litestream and of the S3 client.
//
// [Replication] sends what is committed to the replica while the service runs.
// [Restore] writes a state of the replica to a file, and [Follower] keeps such a
// file up to date for a standby. [Lease] is the right to write to the replica,
// which one service holds at a time.
//
// Litestream runs in this process and on its SQLite library, see
// docs/decisions/0023-replica.md.
package replica

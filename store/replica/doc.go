// Package replica replicates the database with Litestream to a directory or an S3
// bucket, and restores it. It is the only package that imports Litestream and the S3
// client.
//
// [Replication] uploads commits while the service runs. [Restore] writes a state of
// the replica to a file, and [Follower] keeps such a file up to date for a standby.
// [Lease] is the right to write to the replica, which one service holds at a time.
//
// Litestream runs in this process and uses its SQLite library, see
// docs/decisions/0023-replica.md.
package replica

// Package replica replicates the database with Litestream to a directory or an S3
// bucket, and restores it. It is the only package that imports Litestream and the S3
// client.
//
// [Replication] uploads commits while the service runs. [Restore] writes a state of
// the replica to a file, and [Follower] keeps such a file up to date for a standby.
// [Lease] is the right to write to the replica, which one service holds at a time.
//
// Litestream copies commits from the WAL to LTX files, which are called objects once they
// are in the replica. A file of level 0 contains the commits of one sync, which is a
// transaction of Litestream with a number, its TXID. The newest TXID of a database or
// replica is its position. Compactions merge files of one level into a file of the next;
// files of the snapshot level contain the whole database. A plan is a list of files from
// which a state can be restored. A term consists of the files that one data directory
// writes, see type term.
//
// Litestream runs in this process and uses its SQLite library, see
// docs/decisions/0023-litestream-in-the-process.md.
package replica

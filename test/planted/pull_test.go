//go:build cgo

package planted

// pullBugs are mistakes with which a pull skips an event, shows one twice, or shows one too early. The
// pullers of test/crash and test/failover find those that a cursor or the replica decides, too.
var pullBugs = []testBug{
	{bug{name: "a cursor of an earlier epoch skips the first event of the next", edits: []edit{
		{"store/record/event_log.go", "seq = min(seq, later.head)\n", "seq = min(seq, later.head+1)\n"},
	}}, "TestResolveSkipsNothing", "continues at", "store/record"},
	{bug{name: "a cursor goes on in the seqs that a later epoch gave out again", edits: []edit{
		{"store/record/event_log.go", "seq = min(seq, later.head)\n", "seq = min(seq, max(seq, later.head))\n"},
	}}, "TestPullAfterRestore", "from a cursor that was lost", "store"},
	{bug{name: "the first epoch is known after others were dropped", edits: []edit{
		{"store/record/event_log.go", "if rows++; rows == 1 && num > 1 {", "if rows++; rows == 1 && num == 0 {"},
	}}, "TestPullAfterManyEpochs", "from the first one", "store"},
	{bug{name: "a page that others follow shows its last event again", edits: []edit{
		{"store/record/event_log.go", "p.Next = p.Cursor(at)\n", "if more {\n\t\t\t\tat--\n\t\t\t}\n\t\t\tp.Next = p.Cursor(at)\n"},
	}}, "TestPullSelects", "in small pages", "store"},
	{bug{name: "a stream resumes with the event that the client has", edits: []edit{
		{"api/pull.go", "at = page.Cursor(page.Events[i].Seq)", "at = page.Cursor(page.Events[i].Seq - 1)"},
	}}, "TestPullStream", "want", "api"},
	{bug{name: "what a pull has waited for without success counts as uploaded", edits: []edit{
		{"store/pull.go", "err = s.replication.Await(ctx,", "s.pulled.Add(programID, p.Newest, 0)\n\terr = s.replication.Await(ctx,"},
	}}, "TestPullAcknowledged", "got 200", "api"},
	{bug{name: "a pull waits for the commits that are counted", edits: []edit{
		{"store/pull.go", "s.db.Writer().VisibleCommits()", "s.db.Writer().Commits()"},
	}}, "TestPullDuringCommit", "did not wait for the COMMIT", "store"},
	{bug{name: "a pull takes a COMMIT in progress for one that did not begin", edits: []edit{
		{"store/sqlite/writer.go",
			"\tw.committing.Lock()\n\tdefer w.committing.Unlock()\n\treturn w.commits.Load()", "\treturn w.commits.Load()"},
	}}, "TestVisibleCommits", "during the COMMIT", "store/sqlite"},
}

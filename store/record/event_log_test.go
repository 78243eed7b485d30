package record

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// fork is a log with its epochs, in one copy of the data.
type fork struct {
	events []int64 // each is unique among all forks; the seq is the index + 1
	epochs logEpochs
}

// randomForks returns a log and copies of its earlier states, which continued on their own.
func randomForks(r *rand.Rand) []*fork {
	forks := []*fork{{epochs: logEpochs{{}}}}
	id := int64(0)
	for range 12 {
		of := forks[r.IntN(len(forks))]
		if r.IntN(3) > 0 {
			for range r.IntN(4) {
				id++
				of.events = append(of.events, id)
			}
			continue
		}
		// A copy of an earlier state, which may be from before some of its epochs.
		head := int64(r.IntN(len(of.events) + 1))
		epochs := slices.Clone(of.epochs)
		for epochs[len(epochs)-1].head > head {
			epochs = epochs[:len(epochs)-1]
		}
		id++
		epochs = append(epochs, logEpoch{epochs[len(epochs)-1].id, id, head})
		forks = append(forks, &fork{slices.Clone(of.events[:head]), epochs})
	}
	return forks
}

// A cursor of any copy of a log, however it was restored since, continues in any other copy without
// skipping an event: the reader has seen everything up to the position. Within an epoch it is exact.
func TestResolveSkipsNothing(t *testing.T) {
	seed := rand.Uint64()
	t.Log("seed", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	kept := 0
	for range 2000 {
		forks := randomForks(r)
		for _, read := range forks {
			for _, now := range forks {
				seq := int64(r.IntN(len(read.events) + 1))
				at := read.epochs[len(read.epochs)-1]
				got := now.epochs.resolve(at, seq)
				if got > seq || got > int64(len(now.events)) || !slices.Equal(now.events[:got], read.events[:got]) {
					t.Fatalf("a cursor at %d of %+v continues at %d of %+v", seq, read, got, now)
				}
				if read == now && got != seq {
					t.Fatalf("a cursor at %d of %+v continues at %d", seq, read, got)
				}
				if read != now && got > 0 {
					kept++
				}
			}
		}
	}
	if kept < 1000 {
		t.Errorf("only %d cursors of other copies kept a position", kept)
	}
}

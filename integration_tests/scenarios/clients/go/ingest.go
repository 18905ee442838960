// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	lograft "lograft-client/gen/lograft/v1"
)

const (
	ingestTasks       = 3
	ingestPerTask     = 200
	ingestPartitions  = 2
	commitTimeout     = 60 * time.Second
	singleIngestRound = 1
)

// An ingest is a job that publishes what its tasks have staged, once. docs/clients.md explains each step.
type ingest struct {
	c           *client
	id          string
	topic       string
	connection  *grpc.ClientConn // to the coordinator
	coordinator lograft.IngestServiceClient

	epoch  int32
	opened *lograft.OpenIngestResponse
}

// open opens the ingest, or takes it over, and waits until the broker that appends knows the staging topics.
func (g *ingest) open(ctx context.Context) error {
	err := g.atCoordinator(ctx, callTimeout, func(ctx context.Context, coordinator lograft.IngestServiceClient) (err error) {
		g.opened, err = coordinator.OpenIngest(ctx, &lograft.OpenIngestRequest{
			IngestId: g.id, Kind: lograft.IngestKind_INGEST_KIND_SINGLE, Topics: []string{g.topic},
		})
		return err
	})
	if err != nil {
		return err
	}
	g.epoch = g.opened.IngestEpoch
	_, err = g.c.metadata.GetCluster(ctx, &lograft.GetClusterRequest{
		Topics: []string{g.topic}, MinMetadataOffset: &g.opened.MetadataOffset,
	})
	return err
}

// attempt stages the records of a task, seals the attempt, and returns its entry of the manifest.
func (g *ingest) attempt(ctx context.Context, task int64, values map[int32][][]byte) (*lograft.ManifestEntry, error) {
	attemptID := []byte(rand.Text())
	var producerID int64
	err := g.atCoordinator(ctx, callTimeout, func(ctx context.Context, coordinator lograft.IngestServiceClient) error {
		attempt, err := coordinator.OpenAttempt(ctx, &lograft.OpenAttemptRequest{
			IngestId: g.id, IngestEpoch: g.epoch, Task: task, AttemptId: attemptID,
		})
		producerID = attempt.GetProducerId()
		return err
	})
	if err != nil {
		return nil, err
	}
	place := g.opened.Topics[0]
	seal := &lograft.SealAttemptRequest{
		IngestId: g.id, IngestEpoch: g.epoch, Round: singleIngestRound, Task: task, AttemptId: attemptID,
	}
	entry := &lograft.ManifestEntry{Task: task, AttemptId: attemptID}
	for partition := range int32(ingestPartitions) {
		part := &lograft.StagedPart{TopicId: place.TopicId, Partition: partition}
		// Two batches for each partition: the second one has the sequence after the first.
		for half := range slices.Chunk(values[partition], (len(values[partition])+1)/2) {
			staged, err := g.stage(ctx, place.StagingTopic, partition, producerID, part.Records, half)
			if err != nil {
				return nil, err
			}
			if part.Records == 0 {
				part.FirstOffset = staged.BaseOffset
			}
			part.Records += int64(len(half))
			part.EndOffset = staged.BaseOffset + int64(len(half))
		}
		entry.Records += part.Records
		seal.Parts = append(seal.Parts, part)
	}
	err = g.atCoordinator(ctx, callTimeout, func(ctx context.Context, coordinator lograft.IngestServiceClient) error {
		_, err := coordinator.SealAttempt(ctx, seal)
		return err
	})
	return entry, err
}

// stage appends records to a staging topic. The sequence makes the call safe to repeat.
func (g *ingest) stage(
	ctx context.Context, stagingTopic string, partition int32, producerID int64, sequence int64, values [][]byte,
) (*lograft.AppendedRange, error) {
	request := &lograft.AppendRequest{
		Topic: stagingTopic, Partition: &partition,
		Sequence: &lograft.AppendSequence{
			Producer: &lograft.ProducerIdentity{ProducerId: producerID}, BaseSequence: int32(sequence),
		},
	}
	for _, value := range values {
		request.Records = append(request.Records, &lograft.Record{Value: value})
	}
	for {
		limited, cancel := context.WithTimeout(ctx, callTimeout)
		response, err := g.c.log.Append(limited, request)
		cancel()
		if err == nil {
			return response.Ranges[0], nil
		}
		if !mayRepeat(err) && !slices.Contains([]string{"OUTCOME_UNKNOWN", "UNKNOWN_TOPIC"}, reasonOf(err)) {
			return nil, err
		}
		if err := pause(ctx, err); err != nil {
			return nil, err
		}
	}
}

// commit publishes the attempts of a manifest. When it returns, every record can be read.
func (g *ingest) commit(ctx context.Context, manifest []*lograft.ManifestEntry) (*lograft.CommitIngestResponse, error) {
	var response *lograft.CommitIngestResponse
	err := g.atCoordinator(ctx, commitTimeout, func(ctx context.Context, coordinator lograft.IngestServiceClient) (err error) {
		response, err = coordinator.CommitIngest(ctx, &lograft.CommitIngestRequest{
			IngestId: g.id, IngestEpoch: g.epoch, Round: singleIngestRound, Manifest: manifest,
		})
		return err
	})
	return response, err
}

// atCoordinator repeats a call until the coordinator has answered it. Every call of an ingest may be repeated.
func (g *ingest) atCoordinator(
	ctx context.Context, timeout time.Duration, call func(context.Context, lograft.IngestServiceClient) error,
) error {
	for {
		err := g.connect(ctx)
		if err == nil {
			limited, cancel := context.WithTimeout(ctx, timeout)
			err = call(limited, g.coordinator)
			cancel()
		}
		if err == nil || !mayRepeat(err) {
			return err
		}
		g.close()
		if err := pause(ctx, err); err != nil {
			return err
		}
	}
}

// connect finds the coordinator, unless there is a connection.
func (g *ingest) connect(ctx context.Context) error {
	if g.connection != nil {
		return nil
	}
	found, err := g.c.ingests.FindIngestCoordinator(ctx, &lograft.FindIngestCoordinatorRequest{IngestIds: []string{g.id}})
	if err != nil {
		return err
	}
	place := found.Coordinators[0]
	if place.Error != nil {
		return status.Error(codes.Unavailable, place.Error.Message)
	}
	g.connection, err = grpc.NewClient(
		net.JoinHostPort(place.Host, strconv.Itoa(int(place.Port))), grpc.WithTransportCredentials(insecure.NewCredentials()), keepAlive)
	if err == nil {
		g.coordinator = lograft.NewIngestServiceClient(g.connection)
	}
	return err
}

func (g *ingest) close() {
	if g.connection != nil {
		g.connection.Close()
		g.connection = nil
	}
}

// mayRepeat says whether the same call may have another answer later.
func mayRepeat(err error) bool {
	reasons := []string{"COORDINATOR_LOADING", "NOT_COORDINATOR", "TIMED_OUT", "OVERLOADED", "SHUTTING_DOWN", "INGEST_PUBLISHING"}
	return slices.Contains(reasons, reasonOf(err)) ||
		status.Code(err) == codes.Unavailable || status.Code(err) == codes.DeadlineExceeded
}

// pause waits before a call is repeated.
func pause(ctx context.Context, err error) error {
	select {
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	case <-time.After(retryPause):
		return nil
	}
}

// publishOnce runs a job of three tasks, of which one is tried twice, and runs it again.
func (c *client) publishOnce(ctx context.Context) error {
	topic := c.topic + "-ingest"
	if err := c.createTopic(ctx, topic, ingestPartitions); err != nil {
		return err
	}
	first := &ingest{c: c, id: topic, topic: topic}
	defer first.close()
	if err := first.open(ctx); err != nil {
		return fmt.Errorf("open: %w", err)
	}
	job := &ingest{c: c, id: topic, topic: topic}
	defer job.close()
	if err := job.open(ctx); err != nil {
		return fmt.Errorf("open again: %w", err)
	}
	if _, err := first.attempt(ctx, 0, nil); reasonOf(err) != "INGEST_FENCED" {
		return fmt.Errorf("an attempt of a fenced client: %w", err)
	}
	expected := map[int32][][]byte{}
	var manifest []*lograft.ManifestEntry
	for task := range int64(ingestTasks) {
		values := map[int32][][]byte{}
		for i := range ingestPerTask {
			partition := int32(i % ingestPartitions)
			values[partition] = append(values[partition], fmt.Appendf(nil, "task %d record %d", task, i))
		}
		if task == 1 {
			// A try that does not count.
			if _, err := job.attempt(ctx, task, values); err != nil {
				return fmt.Errorf("attempt: %w", err)
			}
		}
		entry, err := job.attempt(ctx, task, values)
		if err != nil {
			return fmt.Errorf("attempt: %w", err)
		}
		manifest = append(manifest, entry)
		for partition, some := range values {
			expected[partition] = append(expected[partition], some...)
		}
	}
	// The tasks are published in their order, whatever the order of the manifest.
	slices.Reverse(manifest)
	done, err := job.commit(ctx, manifest)
	if err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	if done.Result.Records != ingestTasks*ingestPerTask || done.Result.DroppedAttempts != 1 || done.WasCommitted {
		return fmt.Errorf("unexpected result %v", done)
	}
	for partition := range int32(ingestPartitions) {
		read, err := c.read(ctx, topic, partition)
		if err != nil {
			return err
		}
		if len(read) != len(expected[partition]) {
			return fmt.Errorf("partition %d has %d records, not %d", partition, len(read), len(expected[partition]))
		}
		for i, one := range read {
			if string(one.value) != string(expected[partition][i]) || one.offset != int64(i) {
				return fmt.Errorf("partition %d, offset %d: %q", partition, one.offset, one.value)
			}
		}
	}
	again, err := job.commit(ctx, manifest)
	if err != nil || !again.WasCommitted {
		return fmt.Errorf("the commit again: %v, %w", again, err)
	}
	if _, err := job.commit(ctx, manifest[1:]); reasonOf(err) != "INGEST_CONFLICT" {
		return fmt.Errorf("another manifest: %w", err)
	}
	rerun := &ingest{c: c, id: topic, topic: topic}
	defer rerun.close()
	if err := rerun.open(ctx); err != nil {
		return fmt.Errorf("open of a rerun: %w", err)
	}
	if rerun.opened.State != lograft.IngestState_INGEST_STATE_COMMITTED {
		return fmt.Errorf("a rerun finds state %v", rerun.opened.State)
	}
	fmt.Printf("ok   ingest: %d records of %d tasks published once, in order\n", done.Result.Records, ingestTasks)
	return nil
}

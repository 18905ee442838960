// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	lograft "lograft-client/gen/lograft/v1"
)

const (
	groupPartitions   = 6
	groupRound        = 600
	retryPause        = 100 * time.Millisecond
	idlePause         = 20 * time.Millisecond
	callTimeout       = 10 * time.Second
	processingLimitMs = 60_000
	joinEpoch         = 0
	leaveEpoch        = -1
)

// A groupMember is one consumer of a group over the unary calls of GroupService. docs/clients.md explains each step.
type groupMember struct {
	anyBroker    lograft.GroupServiceClient
	records      lograft.LogServiceClient
	group, topic string
	topicID      []byte

	connection  *grpc.ClientConn // to the coordinator
	coordinator lograft.GroupServiceClient

	id               string
	epoch            int32
	beatNumber       int64
	commitNumber     int64
	assignmentNumber int64
	nextBeat         time.Time

	next      map[int32]int64 // the next offset of each partition that it holds
	committed map[int32]int64 // what it has committed of them
	deliver   func(partition int32, offset int64) error
}

// step beats if it is time, reads what has come, and commits. It is all that a member does, again and again.
func (m *groupMember) step(ctx context.Context) error {
	if !time.Now().Before(m.nextBeat) {
		if err := m.beat(ctx); err != nil {
			return err
		}
	}
	isIdle := true
	for _, partition := range slices.Sorted(maps.Keys(m.next)) {
		response, err := m.records.Read(ctx, &lograft.ReadRequest{Topic: m.topic, Partition: partition, Offset: m.next[partition]})
		if err != nil {
			return err
		}
		for _, one := range response.Records {
			if err := m.deliver(partition, one.Offset); err != nil {
				return err
			}
		}
		isIdle = isIdle && len(response.Records) == 0
		m.next[partition] = response.NextOffset
	}
	if isIdle {
		time.Sleep(idlePause)
	}
	return m.commit(ctx, slices.Sorted(maps.Keys(m.next)))
}

// beat joins or beats, and carries out what the answer says.
func (m *groupMember) beat(ctx context.Context) error {
	m.beatNumber++
	beat := &lograft.MemberBeat{
		GroupId: m.group, MemberId: m.id, MemberEpoch: m.epoch, BeatNumber: m.beatNumber, AssignmentNumber: m.assignmentNumber,
	}
	if m.epoch == joinEpoch {
		beat.Subscription = &lograft.GroupSubscription{Topics: []string{m.topic}}
		beat.ProcessingLimitMs, beat.ClientId = processingLimitMs, "go"
	} else {
		beat.Owned = m.owned()
	}
	response, err := m.heartbeat(ctx, beat)
	switch reasonOf(err) {
	case "":
	case "UNKNOWN_MEMBER", "FENCED_MEMBER_EPOCH", "PROCESSING_LIMIT_EXCEEDED":
		// Everything is lost: commit nothing, and join again under the same id.
		m.next, m.committed, m.epoch, m.assignmentNumber = map[int32]int64{}, map[int32]int64{}, joinEpoch, 0
		m.nextBeat = time.Now().Add(retryPause)
		return nil
	default:
		return err
	}
	state := response.State
	m.epoch = state.MemberEpoch
	m.nextBeat = time.Now().Add(time.Duration(state.HeartbeatIntervalMs) * time.Millisecond)
	if state.Assignment == nil || state.AssignmentNumber <= m.assignmentNumber {
		return nil
	}
	m.assignmentNumber = state.AssignmentNumber
	return m.takeOver(ctx, state.Assignment)
}

// takeOver gives up what is not in the assignment, and begins what is new in it. What is in both goes on.
func (m *groupMember) takeOver(ctx context.Context, assignment *lograft.GroupAssignment) error {
	assigned := map[int32]bool{}
	for _, topic := range assignment.Topics {
		m.topicID = topic.TopicId
		for _, partition := range topic.Partitions {
			assigned[partition] = true
		}
	}
	var gone, come []int32
	for partition := range m.next {
		if !assigned[partition] {
			gone = append(gone, partition)
		}
	}
	for partition := range assigned {
		if _, isHeld := m.next[partition]; !isHeld {
			come = append(come, partition)
		}
	}
	// Nothing of them is delivered any more. They are still this member's until the next beat, so their commit counts.
	if err := m.commit(ctx, gone); err != nil {
		return err
	}
	for _, partition := range gone {
		delete(m.next, partition)
		delete(m.committed, partition)
	}
	if len(come) > 0 {
		offsets, err := m.committedOffsets(ctx, come)
		if err != nil {
			return err
		}
		for _, one := range offsets {
			// The reset policy of this member is "earliest". It applies to a positive "no offset" alone.
			m.next[one.Partition] = one.GetOffset()
			m.committed[one.Partition] = one.GetOffset()
		}
	}
	m.nextBeat = time.Now() // the next beat confirms all of this
	return nil
}

// commit commits the positions of partitions that have moved.
func (m *groupMember) commit(ctx context.Context, partitions []int32) error {
	var offsets []*lograft.OffsetToCommit
	for _, partition := range partitions {
		if m.next[partition] != m.committed[partition] {
			offsets = append(offsets, &lograft.OffsetToCommit{TopicId: m.topicID, Partition: partition, Offset: m.next[partition]})
		}
	}
	if len(offsets) == 0 {
		return nil
	}
	outcomes, err := m.commitOffsets(ctx, offsets)
	if err != nil {
		return err
	}
	for i, one := range outcomes {
		if one.Error != nil {
			return fmt.Errorf("commit of partition %d: %s", one.Partition, one.Error.Message)
		}
		m.committed[one.Partition] = offsets[i].Offset
	}
	return nil
}

func (m *groupMember) commitOffsets(ctx context.Context, offsets []*lograft.OffsetToCommit) ([]*lograft.OffsetOutcome, error) {
	m.commitNumber++
	request := &lograft.CommitOffsetsRequest{Commitment: &lograft.OffsetCommitment{
		GroupId: m.group, MemberId: m.id, MemberEpoch: m.epoch, CommitNumber: m.commitNumber, Offsets: offsets,
	}}
	var outcomes []*lograft.OffsetOutcome
	err := m.atCoordinator(ctx, func(ctx context.Context, coordinator lograft.GroupServiceClient) error {
		response, err := coordinator.CommitOffsets(ctx, request)
		outcomes = response.GetOutcomes()
		return err
	})
	return outcomes, err
}

func (m *groupMember) committedOffsets(ctx context.Context, partitions []int32) ([]*lograft.CommittedOffset, error) {
	slices.Sort(partitions)
	request := &lograft.FetchOffsetsRequest{
		GroupId: m.group, Topics: []*lograft.PartitionsOfTopic{{TopicId: m.topicID, Partitions: partitions}},
	}
	var offsets []*lograft.CommittedOffset
	err := m.atCoordinator(ctx, func(ctx context.Context, coordinator lograft.GroupServiceClient) error {
		response, err := coordinator.FetchOffsets(ctx, request)
		offsets = response.GetOffsets()
		for _, one := range offsets {
			// An offset that waits for the decision of an ingest: that is no "no offset". Ask again.
			if one.Error != nil {
				return status.Error(codes.Unavailable, one.Error.Message)
			}
		}
		return err
	})
	return offsets, err
}

func (m *groupMember) heartbeat(ctx context.Context, beat *lograft.MemberBeat) (*lograft.HeartbeatResponse, error) {
	var response *lograft.HeartbeatResponse
	err := m.atCoordinator(ctx, func(ctx context.Context, coordinator lograft.GroupServiceClient) (err error) {
		response, err = coordinator.Heartbeat(ctx, &lograft.HeartbeatRequest{Beat: beat})
		return err
	})
	return response, err
}

// leave commits, and gives everything up.
func (m *groupMember) leave(ctx context.Context) error {
	defer m.disconnect()
	if err := m.commit(ctx, slices.Sorted(maps.Keys(m.next))); err != nil {
		return err
	}
	m.next = map[int32]int64{}
	m.beatNumber++
	_, err := m.heartbeat(ctx, &lograft.MemberBeat{GroupId: m.group, MemberId: m.id, MemberEpoch: leaveEpoch, BeatNumber: m.beatNumber})
	return err
}

func (m *groupMember) owned() *lograft.GroupAssignment {
	if len(m.next) == 0 {
		return &lograft.GroupAssignment{}
	}
	return &lograft.GroupAssignment{Topics: []*lograft.PartitionsOfTopic{
		{TopicId: m.topicID, Partitions: slices.Sorted(maps.Keys(m.next))},
	}}
}

// atCoordinator repeats a call until the coordinator has answered it. Every request has a number, so a repeated one is harmless.
func (m *groupMember) atCoordinator(ctx context.Context, call func(context.Context, lograft.GroupServiceClient) error) error {
	for {
		err := m.connect(ctx)
		if err == nil {
			limited, cancel := context.WithTimeout(ctx, callTimeout)
			err = call(limited, m.coordinator)
			cancel()
		}
		switch {
		case err == nil:
			return nil
		case slices.Contains([]string{"COORDINATOR_LOADING", "NOT_COORDINATOR", "OUTCOME_UNKNOWN", "TIMED_OUT"}, reasonOf(err)):
		case status.Code(err) == codes.Unavailable, status.Code(err) == codes.DeadlineExceeded:
		default:
			return err
		}
		m.disconnect()
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(retryPause):
		}
	}
}

// connect finds the coordinator, unless there is a connection.
func (m *groupMember) connect(ctx context.Context) error {
	if m.connection != nil {
		return nil
	}
	found, err := m.anyBroker.FindCoordinator(ctx, &lograft.FindCoordinatorRequest{GroupIds: []string{m.group}})
	if err != nil {
		return err
	}
	place := found.Coordinators[0]
	if place.Error != nil {
		return status.Error(codes.Unavailable, place.Error.Message)
	}
	m.connection, err = grpc.NewClient(
		net.JoinHostPort(place.Host, strconv.Itoa(int(place.Port))), grpc.WithTransportCredentials(insecure.NewCredentials()), keepAlive)
	if err == nil {
		m.coordinator = lograft.NewGroupServiceClient(m.connection)
	}
	return err
}

func (m *groupMember) disconnect() {
	if m.connection != nil {
		m.connection.Close()
		m.connection = nil
	}
}

// reasonOf returns the reason in the details of a status; "" without an error, "?" without details.
func reasonOf(err error) string {
	if err == nil {
		return ""
	}
	refusal, _ := status.FromError(err)
	for _, detail := range refusal.Details() {
		if info, isInfo := detail.(*errdetails.ErrorInfo); isInfo {
			return info.Reason
		}
	}
	return "?"
}

// shareGroup has two members share six partitions, lets one leave, and sees each record delivered once.
func (c *client) shareGroup(ctx context.Context) error {
	topic := c.topic + "-shared"
	if err := c.createTopic(ctx, topic, groupPartitions); err != nil {
		return err
	}
	delivered, ends := map[int32]int64{}, map[int32]int64{}
	total := 0
	deliver := func(partition int32, offset int64) error {
		if offset != delivered[partition] {
			return fmt.Errorf("partition %d: record %d after %d", partition, offset, delivered[partition]-1)
		}
		delivered[partition]++
		total++
		return nil
	}
	member := func() *groupMember {
		return &groupMember{
			anyBroker: c.groups, records: c.log, group: topic, topic: topic, id: "go-" + rand.Text(),
			next: map[int32]int64{}, committed: map[int32]int64{}, deliver: deliver,
		}
	}
	first, second := member(), member()
	run := func(what string, isDone func() bool, members ...*groupMember) error {
		for !isDone() {
			for _, one := range members {
				if err := one.step(ctx); err != nil {
					return fmt.Errorf("%s: %w", what, err)
				}
			}
		}
		return nil
	}
	if err := c.appendShared(ctx, topic, ends); err != nil {
		return err
	}
	if err := run("one member", func() bool { return total == groupRound }, first); err != nil {
		return err
	}
	fmt.Printf("ok   group: one member has %d partitions and read %d records\n", len(first.next), total)

	share := func() bool { return len(first.next) == groupPartitions/2 && len(second.next) == groupPartitions/2 }
	if err := run("two members", share, first, second); err != nil {
		return err
	}
	if err := c.appendShared(ctx, topic, ends); err != nil {
		return err
	}
	if err := run("two members", func() bool { return total == 2*groupRound }, first, second); err != nil {
		return err
	}
	fmt.Printf("ok   group: two members have %d and %d partitions and read %d more records, each once\n", len(first.next), len(second.next), groupRound)

	foreign := slices.Min(slices.Collect(maps.Keys(second.next)))
	outcomes, err := first.commitOffsets(ctx, []*lograft.OffsetToCommit{{TopicId: first.topicID, Partition: foreign, Offset: 0}})
	if err != nil {
		return err
	}
	if code := outcomes[0].GetError().GetCode(); code != lograft.ErrorCode_ERROR_CODE_STALE_MEMBER_EPOCH {
		return fmt.Errorf("a commit for the partition of another member: %v", outcomes[0])
	}
	fmt.Printf("ok   group: a commit for partition %d of the other member is refused: STALE_MEMBER_EPOCH\n", foreign)

	if err := first.leave(ctx); err != nil {
		return fmt.Errorf("leave: %w", err)
	}
	if err := c.appendShared(ctx, topic, ends); err != nil {
		return err
	}
	if err := run("the other member", func() bool { return total == 3*groupRound }, second); err != nil {
		return err
	}
	if len(second.next) != groupPartitions || !maps.Equal(second.next, ends) {
		return fmt.Errorf("the other member is at %v, not at %v", second.next, ends)
	}
	if err := second.leave(ctx); err != nil {
		return fmt.Errorf("leave: %w", err)
	}
	committed, err := second.committedOffsets(ctx, slices.Collect(maps.Keys(ends)))
	second.disconnect()
	if err != nil {
		return err
	}
	for _, one := range committed {
		if one.Offset == nil || one.GetOffset() != ends[one.Partition] {
			return fmt.Errorf("partition %d: committed is %v, not %d", one.Partition, one, ends[one.Partition])
		}
	}
	fmt.Printf("ok   group: one left, the other went on at the committed offsets; %d records, each once, all committed\n", total)
	return nil
}

// appendShared appends records with and without keys, and notes the ends of the partitions.
func (c *client) appendShared(ctx context.Context, topic string, ends map[int32]int64) error {
	request := &lograft.AppendRequest{Topic: topic}
	for i := range groupRound {
		request.Records = append(request.Records, &lograft.Record{Key: fmt.Appendf(nil, "key-%d", i), Value: fmt.Append(nil, i)})
	}
	response, err := c.log.Append(ctx, request)
	if err != nil {
		return fmt.Errorf("append: %w", err)
	}
	for _, appended := range response.Ranges {
		ends[appended.Partition] = appended.BaseOffset + int64(len(appended.RecordIndexes))
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

// A Lograft client with nothing but the stubs that protoc made of proto/lograft/v1.
//
// It creates a topic, appends 1,000 records, reads them back, decodes the raw batches of a fetch stream, and compares
// everything byte for byte. Then two members of a group share the partitions of a topic, and an ingest publishes what its tasks
// have staged, once. One line for each check, then PASS; the exit status is 1 on any difference.
//
//	lograft-client ADDRESS [TOPIC-WITH-ZSTD-BATCHES]
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"hash/crc32"
	"os"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	lograft "lograft-client/gen/lograft/v1"
)

const (
	partitionCount   = 3
	keyedCalls       = 4
	keyedPerCall     = 200
	creditBytes      = 1 << 20
	messageBytesMax  = 16 << 20
	deadline         = 100 * time.Second
	leaderRetryEvery = 20 * time.Millisecond
)

// The client pings a silent connection and gives it up without an answer.
var keepAlive = grpc.WithKeepaliveParams(keepalive.ClientParameters{
	Time: 10 * time.Second, Timeout: 9 * time.Second, PermitWithoutStream: true,
})

type client struct {
	admin    lograft.AdminServiceClient
	groups   lograft.GroupServiceClient
	ingests  lograft.IngestServiceClient
	log      lograft.LogServiceClient
	metadata lograft.MetadataServiceClient
	topic    string
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: lograft-client ADDRESS [TOPIC-WITH-ZSTD-BATCHES]")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Println("FAIL", err)
		os.Exit(1)
	}
	fmt.Println("PASS")
}

func run(address string, zstdTopics []string) error {
	connection, err := grpc.NewClient(address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		keepAlive,
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(messageBytesMax)))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	c := &client{
		admin:    lograft.NewAdminServiceClient(connection),
		groups:   lograft.NewGroupServiceClient(connection),
		ingests:  lograft.NewIngestServiceClient(connection),
		log:      lograft.NewLogServiceClient(connection),
		metadata: lograft.NewMetadataServiceClient(connection),
		topic:    "clients-go-" + rand.Text(),
	}
	if err := c.createTopic(ctx, c.topic, partitionCount); err != nil {
		return fmt.Errorf("create topic: %w", err)
	}
	expected := make(map[int32][]record)
	if err := c.appendKeyed(ctx, expected); err != nil {
		return fmt.Errorf("append: %w", err)
	}
	if err := c.appendTwice(ctx, expected); err != nil {
		return fmt.Errorf("append with a sequence: %w", err)
	}
	if err := c.goOn(ctx); err != nil {
		return fmt.Errorf("go on: %w", err)
	}
	if err := c.readBack(ctx, expected); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	if err := c.fetchAndCompare(ctx, c.topic, expected, codecNone); err != nil {
		return fmt.Errorf("fetch: %w", err)
	}
	for _, topic := range zstdTopics {
		read, err := c.read(ctx, topic, 0)
		if err != nil {
			return fmt.Errorf("read %s: %w", topic, err)
		}
		if err := c.fetchAndCompare(ctx, topic, map[int32][]record{0: read}, codecZstd); err != nil {
			return fmt.Errorf("fetch %s: %w", topic, err)
		}
	}
	if err := c.unknownTopic(ctx); err != nil {
		return err
	}
	if err := c.shareGroup(ctx); err != nil {
		return fmt.Errorf("group: %w", err)
	}
	if err := c.publishOnce(ctx); err != nil {
		return fmt.Errorf("ingest: %w", err)
	}
	return nil
}

// createTopic creates a topic and waits until this broker knows a leader for each partition.
func (c *client) createTopic(ctx context.Context, topic string, partitions int32) error {
	created, err := c.admin.CreateTopic(ctx, &lograft.CreateTopicRequest{Topic: topic, PartitionCount: partitions})
	if err != nil {
		return err
	}
	for {
		cluster, err := c.metadata.GetCluster(ctx, &lograft.GetClusterRequest{
			Topics: []string{topic}, MinMetadataOffset: &created.MetadataOffset,
		})
		if err != nil {
			return err
		}
		led := int32(0)
		for _, partition := range cluster.Topics[0].Partitions {
			if partition.LeaderId != nil {
				led++
			}
		}
		if led == partitions {
			fmt.Printf("ok   create topic: %s, %d partitions, metadata offset %d\n", topic, led, created.MetadataOffset)
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(leaderRetryEvery):
		}
	}
}

// appendKeyed lets the broker choose the partition of each record, and checks its choice for those with a key.
func (c *client) appendKeyed(ctx context.Context, expected map[int32][]record) error {
	for call := range keyedCalls {
		request := &lograft.AppendRequest{Topic: c.topic}
		for i := range keyedPerCall {
			request.Records = append(request.Records, sample(call*keyedPerCall+i))
		}
		response, err := c.log.Append(ctx, request)
		if err != nil {
			return err
		}
		placed := 0
		for _, appended := range response.Ranges {
			if appended.Durability != lograft.Durability_DURABILITY_FLUSHED || appended.Duplicate {
				return fmt.Errorf("unexpected answer %v", appended)
			}
			for i, index := range appended.RecordIndexes {
				one := plain(request.Records[index])
				one.offset = appended.BaseOffset + int64(i)
				if one.key != nil && int32(crc32.Checksum(one.key, castagnoli)%partitionCount) != appended.Partition {
					return fmt.Errorf("key %q went to partition %d", one.key, appended.Partition)
				}
				expected[appended.Partition] = append(expected[appended.Partition], one)
				placed++
			}
		}
		if placed != keyedPerCall {
			return fmt.Errorf("%d of %d records were placed", placed, keyedPerCall)
		}
	}
	fmt.Printf("ok   append: %d records in %d calls, partitions by CRC-32C of the key, flushed\n", keyedCalls*keyedPerCall, keyedCalls)
	return nil
}

// appendTwice sends the same records twice under one sequence number: the second time nothing is appended.
func (c *client) appendTwice(ctx context.Context, expected map[int32][]record) error {
	identity, err := c.log.InitProducer(ctx, &lograft.InitProducerRequest{})
	if err != nil {
		return err
	}
	partition := int32(0)
	request := &lograft.AppendRequest{
		Topic: c.topic, Partition: &partition, Sequence: &lograft.AppendSequence{Producer: identity.Producer},
	}
	for i := keyedCalls * keyedPerCall; i < recordCount; i++ {
		request.Records = append(request.Records, sample(i))
	}
	first, err := c.log.Append(ctx, request)
	if err != nil {
		return err
	}
	second, err := c.log.Append(ctx, request)
	if err != nil {
		return err
	}
	a, b := first.Ranges[0], second.Ranges[0]
	if a.Duplicate || !b.Duplicate || a.BaseOffset != b.BaseOffset {
		return fmt.Errorf("first answer %v, second answer %v", a, b)
	}
	for i, sent := range request.Records {
		one := plain(sent)
		one.offset = a.BaseOffset + int64(i)
		expected[partition] = append(expected[partition], one)
	}
	fmt.Printf("ok   append with a sequence: %d records sent twice, once at offset %d, then a duplicate\n", len(request.Records), a.BaseOffset)
	return nil
}

// goOn has its connections die without a word, if the environment names a file for that, and reads until that works again.
// The file asks for it; whoever does it removes the file.
func (c *client) goOn(ctx context.Context) error {
	path := os.Getenv("LOGRAFT_FORGET")
	if path == "" {
		return nil
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	for {
		if _, err := os.Stat(path); os.IsNotExist(err) {
			break
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(leaderRetryEvery):
		}
	}
	began := time.Now()
	for {
		_, err := c.log.Read(ctx, &lograft.ReadRequest{Topic: c.topic})
		if err == nil {
			fmt.Printf("ok   dead connection: read again after %.1f s\n", time.Since(began).Seconds())
			return nil
		}
		if status.Code(err) != codes.Unavailable {
			return err
		}
	}
}

// read returns all records of a partition.
func (c *client) read(ctx context.Context, topic string, partition int32) ([]record, error) {
	var all []record
	for offset := int64(0); ; {
		response, err := c.log.Read(ctx, &lograft.ReadRequest{Topic: topic, Partition: partition, Offset: offset, MaxRecords: 300})
		if err != nil {
			return nil, err
		}
		for _, one := range response.Records {
			all = append(all, plain(one))
		}
		if offset = response.NextOffset; offset >= response.HighWatermark {
			return all, nil
		}
	}
}

func (c *client) readBack(ctx context.Context, expected map[int32][]record) error {
	total := 0
	for partition := range int32(partitionCount) {
		read, err := c.read(ctx, c.topic, partition)
		if err != nil {
			return err
		}
		if err := compare(expected[partition], read); err != nil {
			return fmt.Errorf("partition %d: %w", partition, err)
		}
		total += len(read)
	}
	if total != recordCount {
		return fmt.Errorf("%d records, not %d", total, recordCount)
	}
	fmt.Printf("ok   read: %d records equal in offsets, timestamps, keys, values and headers\n", total)
	return nil
}

// fetchAndCompare streams the raw batches of the partitions, decodes them, and compares them with the records expected.
func (c *client) fetchAndCompare(ctx context.Context, topic string, expected map[int32][]record, codec int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.log.Fetch(ctx)
	if err != nil {
		return err
	}
	open := &lograft.FetchOpen{CreditBytes: creditBytes}
	for partition := range expected {
		open.Routes = append(open.Routes, &lograft.FetchRoute{Route: partition, Topic: topic, Partition: partition})
	}
	if err := stream.Send(&lograft.FetchRequest{Message: &lograft.FetchRequest_Open{Open: open}}); err != nil {
		return err
	}
	fetched, batchCount := make(map[int32][]record), 0
	for caughtUp := make(map[int32]bool); len(caughtUp) < len(expected); {
		response, err := stream.Recv()
		if err != nil {
			return err
		}
		switch message := response.Message.(type) {
		case *lograft.FetchResponse_Opened:
		case *lograft.FetchResponse_Chunk:
			batches, err := splitBatches(message.Chunk.Body)
			if err != nil {
				return err
			}
			for _, one := range batches {
				if one.codec != codec {
					return fmt.Errorf("codec %d, not %d", one.codec, codec)
				}
				fetched[message.Chunk.Route] = append(fetched[message.Chunk.Route], one.records...)
			}
			batchCount += len(batches)
			credit := &lograft.FetchCredit{Bytes: int64(len(message.Chunk.Body))}
			if err := stream.Send(&lograft.FetchRequest{Message: &lograft.FetchRequest_Credit{Credit: credit}}); err != nil {
				return err
			}
		case *lograft.FetchResponse_Mark:
			if message.Mark.CaughtUp {
				caughtUp[message.Mark.Route] = true
			}
		default:
			return fmt.Errorf("unexpected answer %v", response)
		}
	}
	total := 0
	for partition, records := range expected {
		if err := compare(records, fetched[partition]); err != nil {
			return fmt.Errorf("partition %d: %w", partition, err)
		}
		total += len(records)
	}
	fmt.Printf("ok   fetch: %d raw batches (codec %d), CRC-32C right, %d records equal to those of Read\n", batchCount, codec, total)
	return nil
}

// unknownTopic shows that a refusal carries its reason as a google.rpc.ErrorInfo.
func (c *client) unknownTopic(ctx context.Context) error {
	_, err := c.log.Read(ctx, &lograft.ReadRequest{Topic: c.topic + "-unknown"})
	refusal, _ := status.FromError(err)
	for _, detail := range refusal.Details() {
		info, isInfo := detail.(*errdetails.ErrorInfo)
		if isInfo && refusal.Code() == codes.NotFound && info.Reason == "UNKNOWN_TOPIC" && info.Domain == "lograft" {
			fmt.Printf("ok   error: %s, reason %s: %s\n", refusal.Code(), info.Reason, refusal.Message())
			return nil
		}
	}
	return fmt.Errorf("unknown topic: status %v with details %v", refusal, refusal.Details())
}

func compare(expected, found []record) error {
	if len(expected) != len(found) {
		return fmt.Errorf("%d records, not %d", len(found), len(expected))
	}
	for i := range expected {
		if !same(expected[i], found[i]) {
			return fmt.Errorf("record %d is %v, not %v", i, found[i], expected[i])
		}
	}
	return nil
}

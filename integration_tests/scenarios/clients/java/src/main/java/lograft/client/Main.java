// SPDX-License-Identifier: Apache-2.0

package lograft.client;

import com.google.protobuf.Any;
import com.google.protobuf.ByteString;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.ErrorInfo;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import java.util.zip.CRC32C;
import lograft.v1.Admin;
import lograft.v1.AdminServiceGrpc;
import lograft.v1.Log;
import lograft.v1.LogServiceGrpc;
import lograft.v1.Metadata;
import lograft.v1.MetadataServiceGrpc;

/**
 * A Lograft client with nothing but the stubs that protoc made of proto/lograft/v1.
 *
 * <p>It creates a topic, appends 1,000 records, reads them back, decodes the raw batches of a fetch stream, and compares
 * everything byte for byte. One line for each check, then PASS; the exit status is 1 on any difference.
 */
final class Main {
  private static final int PARTITION_COUNT = 3;
  private static final int KEYED_CALLS = 4;
  private static final int KEYED_PER_CALL = 200;
  private static final int READ_RECORDS_MAX = 300;
  private static final int MESSAGE_BYTES_MAX = 16 << 20;
  private static final long DEADLINE_S = 60;
  private static final long LEADER_RETRY_MS = 20;

  private final AdminServiceGrpc.AdminServiceBlockingStub admin;
  private final MetadataServiceGrpc.MetadataServiceBlockingStub metadata;
  private final LogServiceGrpc.LogServiceBlockingStub log;
  private final LogServiceGrpc.LogServiceStub streams;
  private final String topic = "clients-java-" + UUID.randomUUID();
  private final Map<Integer, List<Row>> expected = new TreeMap<>();

  private Main(ManagedChannel channel) {
    admin = AdminServiceGrpc.newBlockingStub(channel).withDeadlineAfter(DEADLINE_S, TimeUnit.SECONDS);
    metadata = MetadataServiceGrpc.newBlockingStub(channel).withDeadlineAfter(DEADLINE_S, TimeUnit.SECONDS);
    log = LogServiceGrpc.newBlockingStub(channel).withDeadlineAfter(DEADLINE_S, TimeUnit.SECONDS);
    streams = LogServiceGrpc.newStub(channel);
  }

  public static void main(String[] arguments) throws Exception {
    if (arguments.length < 1) {
      System.err.println("usage: java -jar lograft-client.jar ADDRESS [TOPIC-WITH-ZSTD-BATCHES]");
      System.exit(2);
    }
    ManagedChannel channel =
        Grpc.newChannelBuilder(arguments[0], InsecureChannelCredentials.create())
            .maxInboundMessageSize(MESSAGE_BYTES_MAX)
            .keepAliveTime(10, TimeUnit.SECONDS)
            .keepAliveTimeout(9, TimeUnit.SECONDS)
            .keepAliveWithoutCalls(true)
            .build();
    try {
      new Main(channel).run(Arrays.asList(arguments).subList(1, arguments.length));
      System.out.println("PASS");
    } catch (Check.Difference | StatusRuntimeException | InvalidProtocolBufferException failure) {
      System.out.println("FAIL " + failure);
      System.exit(1);
    } finally {
      channel.shutdownNow().awaitTermination(DEADLINE_S, TimeUnit.SECONDS);
    }
  }

  private void run(List<String> zstdTopics) throws InterruptedException, IOException {
    createTopic();
    appendKeyed();
    appendTwice();
    goOn();
    readBack();
    fetchAndCompare(topic, expected, Batch.CODEC_NONE);
    for (String zstdTopic : zstdTopics) {
      fetchAndCompare(zstdTopic, Map.of(0, read(zstdTopic, 0)), Batch.CODEC_ZSTD);
    }
    unknownTopic();
  }

  /** Creates the topic and waits until this broker knows a leader for each partition. */
  private void createTopic() throws InterruptedException {
    Admin.CreateTopicResponse created =
        admin.createTopic(
            Admin.CreateTopicRequest.newBuilder().setTopic(topic).setPartitionCount(PARTITION_COUNT).build());
    Metadata.GetClusterRequest query =
        Metadata.GetClusterRequest.newBuilder()
            .addTopics(topic)
            .setMinMetadataOffset(created.getMetadataOffset())
            .build();
    while (metadata.getCluster(query).getTopics(0).getPartitionsList().stream()
            .filter(Metadata.Partition::hasLeaderId)
            .count()
        < PARTITION_COUNT) {
      TimeUnit.MILLISECONDS.sleep(LEADER_RETRY_MS);
    }
    Check.passed("create topic: %s, %d partitions, metadata offset %d", topic, PARTITION_COUNT, created.getMetadataOffset());
  }

  /** Lets the broker choose the partition of each record, and checks its choice for those with a key. */
  private void appendKeyed() {
    for (int call = 0; call < KEYED_CALLS; call++) {
      Log.AppendRequest.Builder request = Log.AppendRequest.newBuilder().setTopic(topic);
      for (int i = 0; i < KEYED_PER_CALL; i++) {
        request.addRecords(Row.sample(call * KEYED_PER_CALL + i));
      }
      int placed = 0;
      for (Log.AppendedRange range : log.append(request.build()).getRangesList()) {
        boolean asAsked = range.getDurability() == Log.Durability.DURABILITY_FLUSHED && !range.getDuplicate();
        Check.that(asAsked, "unexpected answer %s", range);
        for (int i = 0; i < range.getRecordIndexesCount(); i++) {
          Row row = Row.of(request.getRecords(range.getRecordIndexes(i)), range.getBaseOffset() + i);
          boolean right = row.key() == null || partitionOf(row.key()) == range.getPartition();
          Check.that(right, "key %s went to partition %d", row.key(), range.getPartition());
          expect(range.getPartition(), row);
          placed++;
        }
      }
      Check.that(placed == KEYED_PER_CALL, "%d of %d records were placed", placed, KEYED_PER_CALL);
    }
    int total = KEYED_CALLS * KEYED_PER_CALL;
    Check.passed("append: %d records in %d calls, partitions by CRC-32C of the key, flushed", total, KEYED_CALLS);
  }

  private static int partitionOf(ByteString key) {
    CRC32C checksum = new CRC32C();
    checksum.update(key.asReadOnlyByteBuffer());
    return (int) (checksum.getValue() % PARTITION_COUNT);
  }

  /** Sends the same records twice under one sequence number: the second time nothing is appended. */
  private void appendTwice() {
    Log.ProducerIdentity producer = log.initProducer(Log.InitProducerRequest.getDefaultInstance()).getProducer();
    Log.AppendRequest.Builder request =
        Log.AppendRequest.newBuilder()
            .setTopic(topic)
            .setPartition(0)
            .setSequence(Log.AppendSequence.newBuilder().setProducer(producer));
    for (int i = KEYED_CALLS * KEYED_PER_CALL; i < Row.COUNT; i++) {
      request.addRecords(Row.sample(i));
    }
    Log.AppendedRange first = log.append(request.build()).getRanges(0);
    Log.AppendedRange second = log.append(request.build()).getRanges(0);
    boolean once = !first.getDuplicate() && second.getDuplicate() && first.getBaseOffset() == second.getBaseOffset();
    Check.that(once, "first answer %s, second answer %s", first, second);
    for (int i = 0; i < request.getRecordsCount(); i++) {
      expect(0, Row.of(request.getRecords(i), first.getBaseOffset() + i));
    }
    Check.passed(
        "append with a sequence: %d records sent twice, once at offset %d, then a duplicate",
        request.getRecordsCount(), first.getBaseOffset());
  }

  private void expect(int partition, Row row) {
    expected.computeIfAbsent(partition, key -> new ArrayList<>()).add(row);
  }

  /**
   * Has its connections die without a word, if the environment names a file for that, and reads until that works again. The
   * file asks for it; whoever does it removes the file.
   */
  private void goOn() throws InterruptedException, IOException {
    String path = System.getenv("LOGRAFT_FORGET");
    if (path == null) {
      return;
    }
    Files.createFile(Path.of(path));
    while (Files.exists(Path.of(path))) {
      TimeUnit.MILLISECONDS.sleep(LEADER_RETRY_MS);
    }
    long began = System.nanoTime();
    for (boolean isThere = false; !isThere; ) {
      try {
        log.read(Log.ReadRequest.newBuilder().setTopic(topic).build());
        isThere = true;
      } catch (StatusRuntimeException failure) {
        if (failure.getStatus().getCode() != Status.Code.UNAVAILABLE) {
          throw failure;
        }
      }
    }
    Check.passed("dead connection: read again after %.1f s", (System.nanoTime() - began) / 1e9);
  }

  private List<Row> read(String from, int partition) {
    List<Row> rows = new ArrayList<>();
    Log.ReadResponse response;
    long offset = 0;
    do {
      response =
          log.read(
              Log.ReadRequest.newBuilder()
                  .setTopic(from)
                  .setPartition(partition)
                  .setOffset(offset)
                  .setMaxRecords(READ_RECORDS_MAX)
                  .build());
      response.getRecordsList().forEach(one -> rows.add(Row.of(one, one.getOffset())));
      offset = response.getNextOffset();
    } while (offset < response.getHighWatermark());
    return rows;
  }

  private void readBack() {
    int total = 0;
    for (int partition = 0; partition < PARTITION_COUNT; partition++) {
      List<Row> rows = read(topic, partition);
      Check.same(partition, expected.getOrDefault(partition, List.of()), rows);
      total += rows.size();
    }
    Check.that(total == Row.COUNT, "%d records, not %d", total, Row.COUNT);
    Check.passed("read: %d records equal in offsets, timestamps, keys, values and headers", total);
  }

  private void fetchAndCompare(String from, Map<Integer, List<Row>> rows, int codec)
      throws InterruptedException, InvalidProtocolBufferException {
    Map<Integer, List<Batch>> fetched = FetchStream.fetch(streams, from, rows.keySet());
    int batchCount = 0;
    int total = 0;
    for (Map.Entry<Integer, List<Row>> entry : rows.entrySet()) {
      List<Batch> batches = fetched.getOrDefault(entry.getKey(), List.of());
      Check.that(batches.stream().allMatch(batch -> batch.codec() == codec), "a batch has not codec %d", codec);
      Check.same(entry.getKey(), entry.getValue(), batches.stream().flatMap(batch -> batch.rows().stream()).toList());
      batchCount += batches.size();
      total += entry.getValue().size();
    }
    Check.passed(
        "fetch: %d raw batches (codec %d), CRC-32C right, %d records equal to those of Read", batchCount, codec, total);
  }

  /** Shows that a refusal carries its reason as a google.rpc.ErrorInfo. */
  private void unknownTopic() throws InvalidProtocolBufferException {
    try {
      log.read(Log.ReadRequest.newBuilder().setTopic(topic + "-unknown").build());
    } catch (StatusRuntimeException refusal) {
      for (Any detail : StatusProto.fromThrowable(refusal).getDetailsList()) {
        if (!detail.is(ErrorInfo.class)) {
          continue;
        }
        ErrorInfo info = detail.unpack(ErrorInfo.class);
        Status.Code code = refusal.getStatus().getCode();
        boolean right = code == Status.Code.NOT_FOUND && info.getDomain().equals("lograft");
        Check.that(right && info.getReason().equals("UNKNOWN_TOPIC"), "%s with %s", code, info);
        Check.passed("error: %s, reason %s: %s", code, info.getReason(), refusal.getStatus().getDescription());
        return;
      }
      throw new Check.Difference("no ErrorInfo in " + refusal);
    }
    throw new Check.Difference("an unknown topic was read");
  }
}

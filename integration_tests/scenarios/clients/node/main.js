// SPDX-License-Identifier: Apache-2.0
// A Lograft client with nothing but the .proto files of proto/lograft/v1, from which it makes its stubs at start.
//
// It creates a topic, appends 1,000 records, reads them back, decodes the raw batches of a fetch stream, and compares
// everything byte for byte. One line for each check, then PASS; the exit status is 1 on any difference.
//
//     node main.js ADDRESS [TOPIC-WITH-ZSTD-BATCHES]

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { existsSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";
import protobuf from "protobufjs";

import { CODEC_NONE, CODEC_ZSTD, splitBatches } from "./batch.js";
import { crc32c } from "./crc32c.js";
import { errorInfo } from "./status.js";
import { plain, RECORD_COUNT, sample } from "./records.js";

const PROTO_ROOT = fileURLToPath(new URL("../../../../proto", import.meta.url));
const PARTITION_COUNT = 3;
const KEYED_CALLS = 4;
const KEYED_PER_CALL = 200;
const READ_RECORDS_MAX = 300;
const CREDIT_BYTES = 1 << 20;
const MESSAGE_BYTES_MAX = 16 << 20;
const DEADLINE_MS = 60_000;
const LEADER_RETRY_MS = 20;

const FILES = ["admin", "log", "metadata", "records"].map((name) => `lograft/v1/${name}.proto`);
const definition = protoLoader.loadSync(FILES, {
  includeDirs: [PROTO_ROOT], longs: Number, enums: String, defaults: true, oneofs: true,
});
const { AdminService, LogService, MetadataService } = grpc.loadPackageDefinition(definition).lograft.v1;
const messages = new protobuf.Root();
messages.resolvePath = (_, target) => `${PROTO_ROOT}/${target}`;
const Records = messages.loadSync("lograft/v1/records.proto").lookupType("lograft.v1.Records");

const passed = (text) => console.log(`ok   ${text}`);

class Client {
  constructor(address) {
    const options = {
      "grpc.max_receive_message_length": MESSAGE_BYTES_MAX,
      "grpc.keepalive_time_ms": 3000,
      "grpc.keepalive_timeout_ms": 9000,
      "grpc.keepalive_permit_without_calls": 1,
    };
    const connect = (Service) => new Service(address, grpc.credentials.createInsecure(), options);
    this.admin = connect(AdminService);
    this.log = connect(LogService);
    this.metadata = connect(MetadataService);
    this.topic = `clients-node-${randomUUID()}`;
    this.expected = new Map();
  }

  call(service, method, request) {
    return promisify(service[method].bind(service))(request, { deadline: Date.now() + DEADLINE_MS });
  }

  async run(zstdTopics) {
    await this.createTopic();
    await this.appendKeyed();
    await this.appendTwice();
    await this.goOn();
    await this.readBack();
    await this.fetchAndCompare(this.topic, this.expected, CODEC_NONE);
    for (const topic of zstdTopics) {
      await this.fetchAndCompare(topic, new Map([[0, await this.read(topic, 0)]]), CODEC_ZSTD);
    }
    await this.unknownTopic();
  }

  /** Creates the topic and waits until this broker knows a leader for each partition. */
  async createTopic() {
    const created = await this.call(this.admin, "createTopic", { topic: this.topic, partitionCount: PARTITION_COUNT });
    const query = { topics: [this.topic], minMetadataOffset: created.metadataOffset };
    for (let led = 0; led < PARTITION_COUNT; ) {
      const cluster = await this.call(this.metadata, "getCluster", query);
      led = cluster.topics[0].partitions.filter((partition) => "leaderId" in partition).length;
      if (led < PARTITION_COUNT) {
        await new Promise((resolve) => setTimeout(resolve, LEADER_RETRY_MS));
      }
    }
    passed(`create topic: ${this.topic}, ${PARTITION_COUNT} partitions, metadata offset ${created.metadataOffset}`);
  }

  /** Lets the broker choose the partition of each record, and checks its choice for those with a key. */
  async appendKeyed() {
    for (let call = 0; call < KEYED_CALLS; call += 1) {
      const records = Array.from({ length: KEYED_PER_CALL }, (_, i) => sample(call * KEYED_PER_CALL + i));
      const { ranges } = await this.call(this.log, "append", { topic: this.topic, records });
      let placed = 0;
      for (const range of ranges) {
        assert(range.durability === "DURABILITY_FLUSHED" && !range.duplicate, `unexpected answer ${JSON.stringify(range)}`);
        range.recordIndexes.forEach((index, i) => {
          const { key } = records[index];
          assert(!key || crc32c(key) % PARTITION_COUNT === range.partition, `key ${key} went to ${range.partition}`);
          this.expect(range.partition, plain(records[index], range.baseOffset + i));
          placed += 1;
        });
      }
      assert.equal(placed, KEYED_PER_CALL, "every record was placed");
    }
    const total = KEYED_CALLS * KEYED_PER_CALL;
    passed(`append: ${total} records in ${KEYED_CALLS} calls, partitions by CRC-32C of the key, flushed`);
  }

  /** Sends the same records twice under one sequence number: the second time nothing is appended. */
  async appendTwice() {
    const { producer } = await this.call(this.log, "initProducer", {});
    const start = KEYED_CALLS * KEYED_PER_CALL;
    const records = Array.from({ length: RECORD_COUNT - start }, (_, i) => sample(start + i));
    const request = { topic: this.topic, partition: 0, records, sequence: { producer, baseSequence: 0 } };
    const first = (await this.call(this.log, "append", request)).ranges[0];
    const second = (await this.call(this.log, "append", request)).ranges[0];
    const once = !first.duplicate && second.duplicate && first.baseOffset === second.baseOffset;
    assert(once, `first answer ${JSON.stringify(first)}, second answer ${JSON.stringify(second)}`);
    records.forEach((record, i) => this.expect(0, plain(record, first.baseOffset + i)));
    passed(
      `append with a sequence: ${records.length} records sent twice, once at offset ${first.baseOffset}, then a duplicate`,
    );
  }

  expect(partition, row) {
    this.expected.set(partition, [...(this.expected.get(partition) ?? []), row]);
  }

  /**
   * Has its connections die without a word, if the environment names a file for that, and reads until that works again.
   * The file asks for it; whoever does it removes the file.
   */
  async goOn() {
    const path = process.env.LOGRAFT_FORGET;
    if (!path) {
      return;
    }
    writeFileSync(path, "");
    while (existsSync(path)) {
      await new Promise((resolve) => setTimeout(resolve, LEADER_RETRY_MS));
    }
    const began = performance.now();
    for (let isThere = false; !isThere; ) {
      try {
        await this.call(this.log, "read", { topic: this.topic });
        isThere = true;
      } catch (error) {
        if (error.code !== grpc.status.UNAVAILABLE) {
          throw error;
        }
      }
    }
    passed(`dead connection: read again after ${((performance.now() - began) / 1000).toFixed(1)} s`);
  }

  async read(topic, partition) {
    const rows = [];
    for (let offset = 0, end = 1; offset < end; ) {
      const response = await this.call(this.log, "read", { topic, partition, offset, maxRecords: READ_RECORDS_MAX });
      rows.push(...response.records.map((record) => plain(record, record.offset)));
      offset = response.nextOffset;
      end = response.highWatermark;
    }
    return rows;
  }

  async readBack() {
    let total = 0;
    for (let partition = 0; partition < PARTITION_COUNT; partition += 1) {
      const rows = await this.read(this.topic, partition);
      assert.deepEqual(rows, this.expected.get(partition) ?? []);
      total += rows.length;
    }
    assert.equal(total, RECORD_COUNT);
    passed(`read: ${total} records equal in offsets, timestamps, keys, values and headers`);
  }

  /** Streams the raw batches of the partitions, decodes them, and compares them with the rows expected. */
  async fetchAndCompare(topic, expected, codec) {
    const stream = this.log.fetch({ deadline: Date.now() + DEADLINE_MS });
    const partitions = [...expected.keys()];
    const routes = partitions.map((partition) => ({ route: partition, topic, partition, offset: 0 }));
    stream.write({ open: { routes, creditBytes: CREDIT_BYTES } });
    const fetched = new Map(partitions.map((partition) => [partition, []]));
    const caughtUp = new Set();
    let batchCount = 0;
    try {
      for await (const response of stream) {
        assert(["opened", "chunk", "mark"].includes(response.message), `unexpected answer ${JSON.stringify(response)}`);
        if (response.message === "chunk") {
          const batches = splitBatches(response.chunk.body, Records);
          assert(batches.every((batch) => batch.codec === codec), `a batch has not codec ${codec}`);
          fetched.get(response.chunk.route).push(...batches.flatMap((batch) => batch.rows));
          batchCount += batches.length;
          stream.write({ credit: { bytes: response.chunk.body.length } });
        } else if (response.message === "mark" && response.mark.caughtUp) {
          caughtUp.add(response.mark.route);
          if (caughtUp.size === partitions.length) {
            stream.cancel();
          }
        }
      }
    } catch (error) {
      if (error.code !== grpc.status.CANCELLED) {
        throw error;
      }
    }
    assert.equal(caughtUp.size, partitions.length, "the stream ended before it had caught up");
    assert.deepEqual(fetched, expected);
    const total = [...fetched.values()].reduce((sum, rows) => sum + rows.length, 0);
    passed(`fetch: ${batchCount} raw batches (codec ${codec}), CRC-32C right, ${total} records equal to those of Read`);
  }

  /** Shows that a refusal carries its reason as a google.rpc.ErrorInfo. */
  async unknownTopic() {
    const refusal = await this.call(this.log, "read", { topic: `${this.topic}-unknown` }).then(
      () => assert.fail("an unknown topic was read"),
      (error) => error,
    );
    const info = errorInfo(refusal);
    assert.equal(refusal.code, grpc.status.NOT_FOUND, String(refusal));
    assert.deepEqual([info.reason, info.domain], ["UNKNOWN_TOPIC", "lograft"]);
    passed(`error: ${grpc.status[refusal.code]}, reason ${info.reason}: ${refusal.details}`);
  }
}

if (process.argv.length < 3) {
  console.error("usage: node main.js ADDRESS [TOPIC-WITH-ZSTD-BATCHES]");
  process.exit(2);
}
try {
  await new Client(process.argv[2]).run(process.argv.slice(3));
  console.log("PASS");
  process.exit(0);
} catch (error) {
  console.log("FAIL", error);
  process.exit(1);
}

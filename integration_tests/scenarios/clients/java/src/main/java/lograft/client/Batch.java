// SPDX-License-Identifier: Apache-2.0

package lograft.client;

import com.github.luben.zstd.Zstd;
import com.google.protobuf.ByteString;
import com.google.protobuf.InvalidProtocolBufferException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.zip.CRC32C;
import lograft.v1.RecordsOuterClass.Records;

/** A raw record batch: a big-endian header of 61 bytes and a payload that the generated code parses. */
record Batch(int codec, List<Row> rows) {
  static final int CODEC_NONE = 0;
  static final int CODEC_ZSTD = 4;
  private static final int HEADER_BYTES = 61;
  private static final int LENGTH_END = 12;
  private static final int MAGIC_AT = 16;
  private static final int CHECKSUM_AT = 17;
  private static final int ATTRIBUTES_AT = 21;
  private static final int BASE_TIMESTAMP_AT = 27;
  private static final int RECORD_COUNT_AT = 57;
  private static final int MAGIC = 16;
  private static final int CODEC_MASK = 0x07;
  private static final long INFLATED_BYTES_MAX = 64L << 20;

  /** Decodes the batches that stand one after the other in a chunk. */
  static List<Batch> split(ByteString chunk) throws InvalidProtocolBufferException {
    List<Batch> batches = new ArrayList<>();
    ByteBuffer rest = chunk.asReadOnlyByteBuffer();
    while (rest.hasRemaining()) {
      int size = LENGTH_END + rest.getInt(rest.position() + 8);
      Check.that(size >= HEADER_BYTES && size <= rest.remaining(), "a batch of %d bytes in %d", size, rest.remaining());
      batches.add(decode(rest.slice(rest.position(), size)));
      rest.position(rest.position() + size);
    }
    return batches;
  }

  /** Checks the checksum of one whole batch, which covers everything from the attributes on, and unpacks its payload. */
  private static Batch decode(ByteBuffer batch) throws InvalidProtocolBufferException {
    Check.that(batch.get(MAGIC_AT) == MAGIC, "magic is %d, not %d", batch.get(MAGIC_AT), MAGIC);
    CRC32C checksum = new CRC32C();
    checksum.update(batch.slice(ATTRIBUTES_AT, batch.limit() - ATTRIBUTES_AT));
    int want = batch.getInt(CHECKSUM_AT);
    Check.that((int) checksum.getValue() == want, "CRC-32C is %x, the header says %x", checksum.getValue(), want);
    int codec = batch.getShort(ATTRIBUTES_AT) & CODEC_MASK;
    ByteBuffer payload = batch.slice(HEADER_BYTES, batch.limit() - HEADER_BYTES);
    Records columns = Records.parseFrom(inflate(codec, payload));
    return new Batch(codec, rows(columns, batch.getInt(RECORD_COUNT_AT), batch.getLong(0), batch.getLong(BASE_TIMESTAMP_AT)));
  }

  private static ByteBuffer inflate(int codec, ByteBuffer payload) {
    if (codec == CODEC_NONE) {
      return payload;
    }
    Check.that(codec == CODEC_ZSTD, "codec %d is not known", codec);
    byte[] deflated = new byte[payload.remaining()];
    payload.get(deflated);
    long size = Zstd.getFrameContentSize(deflated);
    Check.that(size >= 0 && size <= INFLATED_BYTES_MAX, "%d inflated bytes", size);
    return ByteBuffer.wrap(Zstd.decompress(deflated, (int) size));
  }

  /** Turns the columns of a payload into rows. */
  private static List<Row> rows(Records columns, int count, long baseOffset, long baseTimestampMs) {
    Integer valueLength = columns.hasValueLength() ? columns.getValueLength() : null;
    List<ByteString> values =
        cut(columns.getValues(), columns.getValueLengthsList(), valueLength, columns.getNullValuesList(), count);
    boolean keyed = columns.hasKeyLength() || columns.getKeyLengthsCount() > 0;
    Integer keyLength = columns.hasKeyLength() ? columns.getKeyLength() : null;
    List<ByteString> keys =
        keyed ? cut(columns.getKeys(), columns.getKeyLengthsList(), keyLength, columns.getNullKeysList(), count) : null;
    Set<Integer> nullHeaders = new HashSet<>(columns.getNullHeaderValuesList());
    List<Row> rows = new ArrayList<>(count);
    int nextHeader = 0;
    for (int i = 0; i < count; i++) {
      List<Row.Field> headers = new ArrayList<>();
      int headerCount = columns.getHeaderCountsCount() > 0 ? columns.getHeaderCounts(i) : 0;
      for (int end = nextHeader + headerCount; nextHeader < end; nextHeader++) {
        ByteString value = nullHeaders.contains(nextHeader) ? null : columns.getHeaderValues(nextHeader);
        headers.add(new Row.Field(columns.getHeaderKeys(nextHeader), value));
      }
      long offset = baseOffset + (columns.getOffsetDeltasCount() > 0 ? columns.getOffsetDeltas(i) : i);
      long timestampMs = baseTimestampMs + (columns.getTimestampDeltasMsCount() > 0 ? columns.getTimestampDeltasMs(i) : 0);
      rows.add(new Row(offset, timestampMs, keyed ? keys.get(i) : null, values.get(i), headers));
    }
    return rows;
  }

  /** Cuts a blob into its parts; those at the null indexes are null. */
  private static List<ByteString> cut(ByteString blob, List<Integer> lengths, Integer length, List<Integer> nulls, int count) {
    Check.that(length != null || lengths.size() == count, "%d lengths for %d records", lengths.size(), count);
    List<ByteString> parts = new ArrayList<>(count);
    int position = 0;
    for (int i = 0; i < count; i++) {
      int end = position + (length != null ? length : lengths.get(i));
      parts.add(blob.substring(position, end));
      position = end;
    }
    Check.that(position == blob.size(), "the lengths sum to %d, the blob has %d bytes", position, blob.size());
    nulls.forEach(index -> parts.set(index, null));
    return parts;
  }
}

// SPDX-License-Identifier: Apache-2.0

package lograft.client;

import com.google.protobuf.ByteString;
import java.nio.charset.StandardCharsets;
import java.util.List;
import lograft.v1.Log;

/** A record as this program compares it; null keys and values are not the same as empty ones. */
record Row(long offset, long timestampMs, ByteString key, ByteString value, List<Field> headers) {
  static final int COUNT = 1_000;
  private static final long FIRST_TIMESTAMP_MS = 1_700_000_000_000L;
  private static final int DISTINCT_KEYS = 50;
  private static final int VALUE_BYTES_MAX = 300;
  private static final ByteString KEY_END = ByteString.copyFrom(new byte[] {0, (byte) 0xff});

  /** A header of a record. */
  record Field(String key, ByteString value) {}

  /** Makes record i: some without a key, some null or empty values, up to three headers, every byte value. */
  static Log.Record sample(int i) {
    Log.Record.Builder made = Log.Record.newBuilder().setTimestampMs(FIRST_TIMESTAMP_MS + i);
    if (i % 10 != 9) {
      made.setKey(ByteString.copyFromUtf8("key-" + i % DISTINCT_KEYS).concat(KEY_END));
    }
    if (i % 97 != 0) {
      byte[] value = new byte[i % VALUE_BYTES_MAX];
      for (int j = 0; j < value.length; j++) {
        value[j] = (byte) (i * 31 + j);
      }
      made.setValue(ByteString.copyFrom(value));
    }
    List<Log.Header> all =
        List.of(
            Log.Header.newBuilder()
                .setKey("number")
                .setValue(ByteString.copyFrom(Integer.toString(i), StandardCharsets.UTF_8))
                .build(),
            Log.Header.newBuilder().setKey("empty").setValue(ByteString.EMPTY).build(),
            Log.Header.newBuilder().setKey("null").build());
    return made.addAllHeaders(all.subList(0, i % (all.size() + 1))).build();
  }

  static Row of(Log.Record from, long offset) {
    List<Field> headers =
        from.getHeadersList().stream()
            .map(one -> new Field(one.getKey(), one.hasValue() ? one.getValue() : null))
            .toList();
    return new Row(
        offset,
        from.getTimestampMs(),
        from.hasKey() ? from.getKey() : null,
        from.hasValue() ? from.getValue() : null,
        headers);
  }
}

// SPDX-License-Identifier: Apache-2.0

package lograft.client;

import java.util.List;

/** Checks that end the program with a difference. */
final class Check {
  private Check() {}

  /** Something is not as it must be. */
  static final class Difference extends RuntimeException {
    private static final long serialVersionUID = 1;

    Difference(String message) {
      super(message);
    }
  }

  static void that(boolean condition, String message, Object... details) {
    if (!condition) {
      throw new Difference(message.formatted(details));
    }
  }

  static void same(int partition, List<Row> expected, List<Row> found) {
    that(expected.size() == found.size(), "partition %d: %d records, not %d", partition, found.size(), expected.size());
    for (int i = 0; i < expected.size(); i++) {
      Row want = expected.get(i);
      Row have = found.get(i);
      that(want.equals(have), "partition %d, record %d: %s, not %s", partition, i, have, want);
    }
  }

  static void passed(String message, Object... details) {
    System.out.println("ok   " + message.formatted(details));
  }
}

// SPDX-License-Identifier: Apache-2.0

package lograft.client;

import com.google.protobuf.InvalidProtocolBufferException;
import io.grpc.Context;
import io.grpc.stub.StreamObserver;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import lograft.v1.Log;
import lograft.v1.LogServiceGrpc;

/** Reads raw batches of some partitions of one topic over one fetch stream until it has caught up with all of them. */
final class FetchStream implements StreamObserver<Log.FetchResponse> {
  private static final long CREDIT_BYTES = 1 << 20;
  private static final long DEADLINE_S = 30;

  private record Arrival(Log.FetchResponse response, Throwable error) {}

  private final BlockingQueue<Arrival> arrivals = new LinkedBlockingQueue<>();

  static Map<Integer, List<Batch>> fetch(LogServiceGrpc.LogServiceStub log, String topic, Collection<Integer> partitions)
      throws InterruptedException, InvalidProtocolBufferException {
    Context.CancellableContext context = Context.current().withCancellation();
    Context before = context.attach();
    try {
      return new FetchStream().run(log, topic, partitions);
    } finally {
      context.detach(before);
      context.cancel(null);
    }
  }

  private Map<Integer, List<Batch>> run(LogServiceGrpc.LogServiceStub log, String topic, Collection<Integer> partitions)
      throws InterruptedException, InvalidProtocolBufferException {
    StreamObserver<Log.FetchRequest> requests = log.withDeadlineAfter(DEADLINE_S, TimeUnit.SECONDS).fetch(this);
    Log.FetchOpen.Builder open = Log.FetchOpen.newBuilder().setCreditBytes(CREDIT_BYTES);
    partitions.forEach(partition -> open.addRoutesBuilder().setRoute(partition).setTopic(topic).setPartition(partition));
    requests.onNext(Log.FetchRequest.newBuilder().setOpen(open).build());
    Map<Integer, List<Batch>> batches = new HashMap<>();
    Set<Integer> caughtUp = new HashSet<>();
    while (caughtUp.size() < partitions.size()) {
      Log.FetchResponse response = next();
      switch (response.getMessageCase()) {
        case OPENED -> {}
        case CHUNK -> {
          Log.FetchChunk chunk = response.getChunk();
          batches.computeIfAbsent(chunk.getRoute(), route -> new ArrayList<>()).addAll(Batch.split(chunk.getBody()));
          requests.onNext(
              Log.FetchRequest.newBuilder().setCredit(Log.FetchCredit.newBuilder().setBytes(chunk.getBody().size())).build());
        }
        case MARK -> {
          if (response.getMark().getCaughtUp()) {
            caughtUp.add(response.getMark().getRoute());
          }
        }
        default -> throw new Check.Difference("unexpected answer " + response);
      }
    }
    return batches;
  }

  private Log.FetchResponse next() throws InterruptedException {
    Arrival arrival = arrivals.poll(DEADLINE_S, TimeUnit.SECONDS);
    Check.that(arrival != null && arrival.error == null, "the fetch stream ended: %s", arrival);
    return arrival.response;
  }

  @Override
  public void onNext(Log.FetchResponse response) {
    arrivals.add(new Arrival(response, null));
  }

  @Override
  public void onError(Throwable error) {
    arrivals.add(new Arrival(null, error));
  }

  @Override
  public void onCompleted() {
    onError(new IllegalStateException("closed by the server"));
  }
}

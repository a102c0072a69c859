package benchmarks

import java.nio.ByteBuffer
import java.nio.charset.StandardCharsets.US_ASCII

import org.apache.spark.sql.DataFrame
import org.apache.spark.sql.streaming.{GroupState, GroupStateTimeout, OutputMode}

case class Event(consumer: String, records: Long, sum: Long)

/** The consumers of ShuffleBench, with `flatMapGroupsWithState` as in its own program for Spark. */
object Consumers {
  /** Columns of `records`: consumer, event_time (microseconds), record. */
  def events(records: DataFrame, digits: Int, recordsPerEvent: Int): DataFrame = {
    import records.sparkSession.implicits._
    records.as[(String, Long, String)].groupByKey(_._1)
      .flatMapGroupsWithState[Array[Byte], Event](OutputMode.Append, GroupStateTimeout.NoTimeout) {
        (consumer, own, state) => consume(consumer, own, state, digits, recordsPerEvent)
      }.toDF()
  }

  /** The state has 64 bytes: count, sum, times of the first and the last record, and bytes of the last record. */
  private def consume(
      consumer: String, records: Iterator[(String, Long, String)], state: GroupState[Array[Byte]],
      digits: Int, recordsPerEvent: Int): Iterator[Event] = {
    val bytes = state.getOption.getOrElse(new Array[Byte](64))
    val events = records.toSeq.flatMap { case (_, time, record) =>
      val buffer = ByteBuffer.wrap(bytes)
      val count = buffer.getLong(0) + 1
      val sum = buffer.getLong(8) + record.substring(0, digits).toLong
      buffer.putLong(0, count).putLong(8, sum).putLong(24, time)
      if (count == 1) buffer.putLong(16, time)
      buffer.position(32).put(record.substring(digits, digits + 32).getBytes(US_ASCII))
      if (count < recordsPerEvent) None
      else {
        java.util.Arrays.fill(bytes, 0.toByte)
        Some(Event(consumer, count, sum))
      }
    }
    state.update(bytes)
    events.iterator
  }
}

package benchmarks

import java.lang.{Double => JDouble, Long => JLong}
import java.nio.ByteBuffer
import java.nio.file.{Files, Path}
import java.time.Instant
import java.util.concurrent.{CompletableFuture, TimeUnit}
import java.util.{Collections, List => JList}

import scala.collection.mutable.ArrayBuffer
import scala.io.{Source => Input}

import org.apache.flink.api.common.eventtime.WatermarkStrategy
import org.apache.flink.api.common.functions.OpenContext
import org.apache.flink.api.common.state.{CheckpointListener, ValueState, ValueStateDescriptor}
import org.apache.flink.api.common.typeinfo.{TypeInformation, Types}
import org.apache.flink.api.connector.source.lib.NumberSequenceSource
import org.apache.flink.api.connector.source.lib.NumberSequenceSource.NumberSequenceSplit
import org.apache.flink.api.connector.source.{ReaderOutput, SourceReader, SourceReaderContext}
import org.apache.flink.api.java.tuple.{Tuple, Tuple3, Tuple4}
import org.apache.flink.configuration.Configuration
import org.apache.flink.core.io.InputStatus
import org.apache.flink.runtime.state.{FunctionInitializationContext, FunctionSnapshotContext}
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction
import org.apache.flink.streaming.api.datastream.DataStream
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink
import org.apache.flink.streaming.api.functions.{KeyedProcessFunction, ProcessFunction}
import org.apache.flink.util.Collector

/** The jobs of L1 in Flink. Reads a run per line from standard input, and answers each with the line `done`.
  *
  * The fields of a line are separated by tabs: job, rows, rows per second, Unix time in microseconds at which row 0 is
  * due, folder of the times, keys, multiplier of the keys, then settings of Flink as `name=value`.
  */
object FlinkLatency {
  type Row = Tuple3[JLong, JLong, JDouble] // id, key, value
  type Totals = Tuple4[JLong, JLong, JLong, JDouble] // id of the newest row, key, rows, sum of value

  def nowUs(): Long = {
    val now = Instant.now()
    now.getEpochSecond * 1000000 + now.getNano / 1000
  }

  def main(arguments: Array[String]): Unit =
    for (line <- Input.stdin.getLines()) {
      try run(line.split('\t'))
      catch {
        case failure: Throwable =>
          failure.printStackTrace()
          Runtime.getRuntime.halt(1) // threads of the cluster would keep the process alive
      }
      println("done")
    }

  private def run(fields: Array[String]): Unit = {
    val Array(job, rows, rate, beganUs, folder, keys, multiplier) = fields.take(7)
    val settings = new Configuration()
    fields.drop(7).map(_.split("=", 2)).foreach { case Array(name, value) => settings.setString(name, value) }
    val flink = StreamExecutionEnvironment.createLocalEnvironment(settings)
    val source = new OpenLoop(rows.toLong, rate.toLong, beganUs.toLong)
    val (keyCount, factor) = (keys.toLong, multiplier.toLong)
    val rowType: TypeInformation[Row] = Types.TUPLE(Types.LONG, Types.LONG, Types.DOUBLE)
    val ids: DataStream[JLong] = flink.fromSource(source, WatermarkStrategy.noWatermarks[JLong](), "rows", Types.LONG)
    val input = ids.map((id: JLong) => new Row(id, id * factor % keyCount, id * 0.5), rowType)
    job match {
      case "stateless" => note(stateless(input, rowType), folder, rows.toInt)
      case "running"   => note(running(input), folder, rows.toInt)
    }
    flink.execute(job)
  }

  private def stateless(rows: DataStream[Row], rowType: TypeInformation[Row]): DataStream[Row] =
    rows.filter((row: Row) => row.f2 >= 0).map((row: Row) => new Row(row.f0, row.f1, row.f2 * 2), rowType)

  private def running(rows: DataStream[Row]): DataStream[Totals] =
    rows.keyBy((row: Row) => row.f1, Types.LONG).process(new RunningTotals, RunningTotals.Output)

  private def note[T <: Tuple](rows: DataStream[T], folder: String, most: Int): Unit =
    rows.process(new Arrivals[T](folder, most), Types.VOID).sinkTo(new DiscardingSink[Void])
}

/** Emits each row when it is due, at the earliest. Subtask i of p emits the rows whose id is i modulo p.
  *
  * The splits of the number sequence are ignored: each of them is a range of ids, and all ranges would be due in turn.
  */
class OpenLoop(rows: Long, rate: Long, beganUs: Long) extends NumberSequenceSource(0, rows - 1) {
  override def createReader(context: SourceReaderContext): SourceReader[JLong, NumberSequenceSplit] =
    new OpenLoopReader(rows, rate, beganUs, context.getIndexOfSubtask, context.currentParallelism)
}

class OpenLoopReader(rows: Long, rate: Long, beganUs: Long, first: Int, step: Int)
    extends SourceReader[JLong, NumberSequenceSplit] {
  private val ShortestWaitUs = 100L
  private var next = first.toLong
  private var polledUs = 0L

  private def dueUs = beganUs + (next * 1000000 + rate - 1) / rate // never too early

  override def pollNext(output: ReaderOutput[JLong]): InputStatus =
    if (next >= rows) InputStatus.END_OF_INPUT
    else {
      if (dueUs > polledUs) polledUs = FlinkLatency.nowUs()
      if (dueUs > polledUs) InputStatus.NOTHING_AVAILABLE
      else {
        output.collect(next)
        next += step
        InputStatus.MORE_AVAILABLE
      }
    }

  override def isAvailable: CompletableFuture[Void] = {
    val waitUs = math.max(dueUs - FlinkLatency.nowUs(), ShortestWaitUs)
    new CompletableFuture[Void]().completeOnTimeout(null, waitUs, TimeUnit.MICROSECONDS)
  }

  override def start(): Unit = ()
  override def addSplits(splits: JList[NumberSequenceSplit]): Unit = ()
  override def notifyNoMoreSplits(): Unit = ()
  override def snapshotState(checkpoint: Long): JList[NumberSequenceSplit] = Collections.emptyList()
  override def close(): Unit = ()
}

/** A running total per key. The first field is the newest row in it. */
class RunningTotals extends KeyedProcessFunction[JLong, FlinkLatency.Row, FlinkLatency.Totals] {
  import FlinkLatency.{Row, Totals}

  @transient private var totals: ValueState[Totals] = _

  override def open(context: OpenContext): Unit =
    totals = getRuntimeContext.getState(new ValueStateDescriptor("totals", RunningTotals.Output))

  override def processElement(
      row: Row, context: KeyedProcessFunction[JLong, Row, Totals]#Context, out: Collector[Totals]): Unit = {
    val before = totals.value()
    val after =
      if (before == null) new Totals(row.f0, row.f1, 1L, row.f2)
      else new Totals(math.max(before.f0, row.f0), row.f1, before.f2 + 1, before.f3 + row.f2)
    totals.update(after)
    out.collect(after)
  }
}

object RunningTotals {
  val Output: TypeInformation[FlinkLatency.Totals] = Types.TUPLE(Types.LONG, Types.LONG, Types.LONG, Types.DOUBLE)
}

/** Notes when each row arrives, and when a checkpoint with it is complete.
  *
  * Writes two files of big-endian integers when the job ends: `INDEX.rows` has id and arrival of each row, and
  * `INDEX.commits` the number of rows up to each completed checkpoint and the time of the notice. Times are in
  * microseconds.
  */
class Arrivals[T <: Tuple](folder: String, most: Int)
    extends ProcessFunction[T, Void] with CheckpointedFunction with CheckpointListener {
  @transient private var ids: Array[Long] = _
  @transient private var arrivedUs: Array[Long] = _
  @transient private var taken: ArrayBuffer[(Long, Int)] = _ // checkpoints that are not complete, and their rows
  @transient private var commits: ArrayBuffer[Long] = _
  private var count = 0

  override def open(context: OpenContext): Unit = {
    ids = new Array[Long](most)
    arrivedUs = new Array[Long](most)
    taken = ArrayBuffer()
    commits = ArrayBuffer()
  }

  override def processElement(row: T, context: ProcessFunction[T, Void]#Context, out: Collector[Void]): Unit = {
    arrivedUs(count) = FlinkLatency.nowUs()
    ids(count) = row.getField[JLong](0)
    count += 1
  }

  override def initializeState(context: FunctionInitializationContext): Unit = ()

  override def snapshotState(context: FunctionSnapshotContext): Unit = taken += context.getCheckpointId -> count

  override def notifyCheckpointComplete(checkpoint: Long): Unit = {
    val (complete, later) = taken.partition(_._1 <= checkpoint)
    if (complete.nonEmpty) commits ++= Seq(complete.last._2.toLong, FlinkLatency.nowUs())
    taken = later
  }

  override def close(): Unit = if (ids != null) {
    val index = getRuntimeContext.getTaskInfo.getIndexOfThisSubtask
    write(s"$index.rows", Iterator.range(0, count).flatMap(row => Iterator(ids(row), arrivedUs(row))), 2 * count)
    write(s"$index.commits", commits.iterator, commits.length)
  }

  private def write(name: String, numbers: Iterator[Long], length: Int): Unit = {
    val bytes = ByteBuffer.allocate(8 * length)
    numbers.foreach(bytes.putLong)
    Files.write(Path.of(folder, name), bytes.array())
  }
}

"""PySpark stages and the pipelines that ship with Weir.

session     typed settings → SparkSession
nycflights  location of the demo's data
schemas     the contract of each dataset
pipelines   the pipelines, registered by the entry point group `weir.pipelines`
batch       a whole job as a Spark plan (BATCH mode)
state       the state of a checkpoint as rows, without its job
stages      programs beside a job: compilation, bounded inputs, streams, delivery
feeder      copies a year of flights into a folder, for the demo
oracle      the expected output of the demo job, computed by plain Spark
__main__    the command line that the console calls
"""

"""PySpark stages.

session     typed settings → SparkSession
batch       a whole job as a Spark plan (BATCH mode)
state       the state of a checkpoint as rows, without its job
stages      programs beside a job: compilation, bounded inputs, streams, delivery
__main__    the command line that the console calls
"""

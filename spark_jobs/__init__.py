"""PySpark stages and the pipelines that ship with Weir.

session     typed settings → SparkSession
nycflights  where the demo's data lies
schemas     the contract of each dataset
pipelines   the jobs themselves, offered through the entry point group `weir.pipelines`
batch       a whole job as a Spark plan (BATCH mode)
stages      what runs beside a job: compiling it, materialising its bounded inputs
feeder      drops a year of flights into a folder, for the demo
oracle      the plain Spark batch answer, for the proof
__main__    the command line that the console speaks
"""

"""What a job may see or name: secrets, hosts, folders and settings of Spark."""

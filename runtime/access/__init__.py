"""Access of a job: the secrets, hosts, folders and Spark settings that it may see or name."""

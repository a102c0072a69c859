"""Operations on a job or its run."""

"""Operations on a checkpoint or savepoint."""

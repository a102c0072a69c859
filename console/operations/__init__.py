"""Operations: every request to start, stop, drain, restore, cancel or discard is a row."""

"""Where records come from. A source names its files or topics; its readers keep positions as keyed state."""

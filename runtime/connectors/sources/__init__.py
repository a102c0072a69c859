"""Sources. A source names its input; its readers keep their positions in state, most of them in keyed state."""

"""Programs beside a streaming job: compilation, bounded inputs, streams, delivery, and queries of its state."""

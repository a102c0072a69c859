"""The health of jobs: facts of their runs, rules over these facts, and a verdict as a sentence."""

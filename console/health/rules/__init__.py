"""Rules of health by subject. `console.health.assessment` has the table of all rules."""

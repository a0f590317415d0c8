"""Values as text and back: durations, timestamps, and every other type."""

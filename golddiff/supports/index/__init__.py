"""An index of a store: each image compressed to a sixteenth of its values, one byte each."""

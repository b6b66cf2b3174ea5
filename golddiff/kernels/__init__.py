"""Fast paths, each equal to a plain version that tests hold it to."""

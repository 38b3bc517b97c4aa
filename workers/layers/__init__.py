"""What families share: reading checkpoints, tokenizing and finishing without torch; packed forwards with it."""

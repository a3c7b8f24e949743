"""Text -> text: what a user loads."""

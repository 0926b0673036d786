"""What stands behind the SDK's calls: checks of arguments, handles of contexts, and the stream of a generation's steps."""

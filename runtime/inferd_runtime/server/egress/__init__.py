"""What goes out for programs: requests over HTTP and calls of MCP servers, in processes of their own."""

"""The one address of a cluster: decides which replica a request goes to, and passes bytes on in both directions."""

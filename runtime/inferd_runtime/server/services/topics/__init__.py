"""Messages between the programs and scripts of a tenant: topics, which all subscribers hear, and queues, where each value goes to
one. State machines inside, waiting outside.
"""

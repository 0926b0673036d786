"""OpenAI's Responses dialect: ``/v1/responses``, with the responses that are kept."""

"""Responses of ``/v1/responses`` that are kept, bounded for each tenant."""

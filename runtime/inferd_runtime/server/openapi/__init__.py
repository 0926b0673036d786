"""The OpenAPI document of the gateway: operations, their bodies' types with the tables of fields, shapes of answers."""

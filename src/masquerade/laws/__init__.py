"""The laws that every method keeps, and what checks them."""

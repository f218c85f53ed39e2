"""Part of foredraft."""

"""The catalog: everything transactional, in one LMDB environment."""

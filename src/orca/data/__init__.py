"""Data before training: XShards, frames, images, and files wherever they lie. Owns nothing itself."""

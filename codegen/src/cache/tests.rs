use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

fn key(name: &str) -> Key {
    Key::new(name, "sm_90a", "")
}

fn cache() -> (tempfile::TempDir, Cache) {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(&CacheOptions::in_folder(folder.path().join("a/b")));
    assert_eq!(cache.warning(), None);
    (folder, cache)
}

fn path_of(cache: &Cache, kind: Kind, key: Key) -> PathBuf {
    cache.path().unwrap().join(format!("{}-{}", kind.name(), key.to_hex()))
}

#[test]
fn entries_come_back() {
    let (_folder, cache) = cache();
    assert_eq!(cache.get(Kind::Ptx, key("a")), None);
    cache.put(Kind::Ptx, key("a"), b"text");
    cache.put(Kind::Ptx, key("b"), b"");
    assert_eq!(cache.get(Kind::Ptx, key("a")).as_deref(), Some(&b"text"[..]));
    assert_eq!(cache.get(Kind::Ptx, key("b")).as_deref(), Some(&b""[..]));
    assert_eq!(cache.get(Kind::HostObject, key("a")), None);
    let mode = std::fs::metadata(cache.path().unwrap()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn keys_depend_on_every_part() {
    let keys =
        [Key::new("p", "t", "f"), Key::new("pt", "", "f"), Key::new("p", "tf", ""), Key::new("p", "t", "g")];
    for (i, a) in keys.iter().enumerate() {
        assert!(keys[..i].iter().all(|b| a != b));
    }
}

#[test]
fn every_flipped_bit_is_a_miss() {
    let (_folder, cache) = cache();
    let path = path_of(&cache, Kind::Ptx, key("a"));
    cache.put(Kind::Ptx, key("a"), b"0123456789");
    let good = std::fs::read(&path).unwrap();
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&path, &bad).unwrap();
        assert_eq!(cache.get(Kind::Ptx, key("a")), None, "bit {bit}");
        assert!(!path.exists());
    }
    for len in 0..good.len() {
        std::fs::write(&path, &good[..len]).unwrap();
        assert_eq!(cache.get(Kind::Ptx, key("a")), None, "{len} bytes");
    }
    let longer = [&good[..], b"x"].concat();
    std::fs::write(&path, longer).unwrap();
    assert_eq!(cache.get(Kind::Ptx, key("a")), None);
}

#[test]
fn an_entry_under_another_name_is_a_miss() {
    let (_folder, cache) = cache();
    cache.put(Kind::Ptx, key("a"), b"a");
    std::fs::rename(path_of(&cache, Kind::Ptx, key("a")), path_of(&cache, Kind::Ptx, key("b"))).unwrap();
    assert_eq!(cache.get(Kind::Ptx, key("b")), None);
}

#[test]
fn folders_and_links_in_the_way_are_replaced() {
    let (folder, cache) = cache();
    let path = path_of(&cache, Kind::Ptx, key("a"));
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join("inside"), b"x").unwrap();
    assert_eq!(cache.get(Kind::Ptx, key("a")), None);
    std::fs::create_dir_all(&path).unwrap();
    std::fs::write(path.join("inside"), b"x").unwrap();
    cache.put(Kind::Ptx, key("a"), b"new");
    assert_eq!(cache.get(Kind::Ptx, key("a")).as_deref(), Some(&b"new"[..]));
    let elsewhere = folder.path().join("elsewhere");
    std::fs::rename(&path, &elsewhere).unwrap();
    symlink(&elsewhere, &path).unwrap();
    assert_eq!(cache.get(Kind::Ptx, key("a")), None);
    assert!(elsewhere.exists());
    symlink(&elsewhere, &path).unwrap();
    cache.put(Kind::Ptx, key("a"), b"again");
    assert_eq!(cache.get(Kind::Ptx, key("a")).as_deref(), Some(&b"again"[..]));
    assert!(std::fs::read(&elsewhere).unwrap().ends_with(b"new"));
}

#[test]
fn a_folder_that_cannot_be_used_is_said_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, b"").unwrap();
    for path in [file.join("below"), file, PathBuf::from("/proc/self/none")] {
        let cache = Cache::open(&CacheOptions::in_folder(&path));
        assert!(cache.warning().is_some_and(|w| w.contains(path.to_str().unwrap())), "{path:?}");
        cache.put(Kind::Ptx, key("a"), b"a");
        assert_eq!(cache.get(Kind::Ptx, key("a")), None);
    }
    let off = Cache::open(&CacheOptions::off());
    off.put(Kind::Ptx, key("a"), b"a");
    assert_eq!((off.get(Kind::Ptx, key("a")), off.warning(), off.path()), (None, None, None));
}

#[test]
fn writers_and_readers_at_once_see_whole_entries() {
    let (_folder, cache) = cache();
    let contents = |n: usize| vec![n as u8; 100_000 + n];
    std::thread::scope(|scope| {
        for n in 0..4usize {
            let other = Cache::open(&CacheOptions::in_folder(cache.path().unwrap()));
            scope.spawn(move || {
                for _ in 0..50 {
                    other.put(Kind::Ptx, key("shared"), &contents(n));
                    if let Some(found) = other.get(Kind::Ptx, key("shared")) {
                        assert_eq!(found, contents(usize::from(found[0])));
                    }
                }
            });
        }
    });
    assert!(cache.get(Kind::Ptx, key("shared")).is_some());
}

#[test]
fn the_oldest_entries_make_room() {
    let folder = tempfile::tempdir().unwrap();
    let options = CacheOptions { folder: Some(folder.path().to_owned()), max_bytes: 10_000 };
    let cache = Cache::open(&options);
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(7200);
    for n in 0..8 {
        cache.put(Kind::Ptx, key(&n.to_string()), &[0; 1000]);
        let file = std::fs::File::open(path_of(&cache, Kind::Ptx, key(&n.to_string()))).unwrap();
        file.set_modified(old + std::time::Duration::from_secs(n)).unwrap();
    }
    std::fs::write(folder.path().join(format!("{}left", folder::TEMPORARY)), [0; 10]).unwrap();
    let left = std::fs::File::open(folder.path().join(format!("{}left", folder::TEMPORARY))).unwrap();
    left.set_modified(old).unwrap();
    assert!(cache.get(Kind::Ptx, key("0")).is_some());
    for n in 8..11 {
        cache.put(Kind::Ptx, key(&n.to_string()), &[0; 1000]);
    }
    assert!(cache.get(Kind::Ptx, key("0")).is_some(), "used just now");
    assert_eq!(cache.get(Kind::Ptx, key("1")), None);
    assert!(cache.get(Kind::Ptx, key("10")).is_some());
    assert!(!folder.path().join(format!("{}left", folder::TEMPORARY)).exists());
    cache.put(Kind::Ptx, key("huge"), &[0; 20_000]);
    assert_eq!(cache.get(Kind::Ptx, key("huge")), None);
}

-- Written by the service of before there were migrations: one evaluation in each state.
BEGIN TRANSACTION;
CREATE TABLE jobs (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    status TEXT NOT NULL
        CHECK (status IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')),
    spec TEXT NOT NULL,
    models TEXT NOT NULL,
    samples INTEGER NOT NULL,
    cost INTEGER NOT NULL,
    fingerprint TEXT NOT NULL,
    idempotency_key TEXT UNIQUE,
    created REAL NOT NULL,
    started REAL,
    finished REAL,
    done INTEGER NOT NULL DEFAULT 0,
    total INTEGER NOT NULL DEFAULT 0,
    stage TEXT NOT NULL DEFAULT '',
    eta REAL,
    best INTEGER NOT NULL DEFAULT 0,
    owner TEXT,
    heartbeat REAL,
    attempts INTEGER NOT NULL DEFAULT 0,
    starts INTEGER NOT NULL DEFAULT 0,
    cancel_requested INTEGER NOT NULL DEFAULT 0,
    result TEXT,
    error TEXT,
    deleted REAL
);
INSERT INTO "jobs" VALUES(1,'00000000000000000000000000000001','succeeded','{"model": "fashion-elliptical", "attacks": [{"name": "fgsm", "eps": ["8/255"]}], "seed": 0}','[{"name": "fashion-elliptical", "version": "1", "digest": "dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd"}]',3,60,'f1',NULL,1.79529039964994740485e+09,1.79529039965188050263e+09,1.7952903996644759178e+09,60,60,'fgsm',NULL,60,NULL,1.79529039965188050263e+09,1,1,0,'{"models": [{"name": "fashion-elliptical"}], "warnings": []}',NULL,NULL);
INSERT INTO "jobs" VALUES(2,'00000000000000000000000000000002','failed','{"model": "fashion-elliptical", "attacks": [{"name": "fgsm", "eps": ["8/255"]}], "seed": 0}','[{"name": "fashion-elliptical", "version": "1", "digest": "dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd"}, {"name": "fashion-dot", "version": "1", "digest": "eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee"}]',3,120,'f2',NULL,1.79529039966507482526e+09,1.79529039966847777363e+09,1.79529039966887092594e+09,0,0,'',NULL,0,NULL,1.79529039966847777363e+09,1,1,0,NULL,'{"code": "disk_full", "message": "the disk of the service is full"}',NULL);
INSERT INTO "jobs" VALUES(3,'00000000000000000000000000000003','cancelled','{"model": "fashion-elliptical", "attacks": [{"name": "fgsm", "eps": ["8/255"]}], "seed": 0}','[{"name": "fashion-elliptical", "version": "1", "digest": "dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd"}]',3,180,'f3',NULL,1.79529039967245388027e+09,NULL,1.79529039967284512516e+09,0,0,'',NULL,0,NULL,NULL,0,0,1,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(4,'00000000000000000000000000000004','cancelled','{}','[{"name": "fashion-elliptical", "version": "1", "digest": "dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd"}]',3,240,'',NULL,1.79529039967644262311e+09,NULL,1.79529039967718744277e+09,0,0,'',NULL,0,NULL,NULL,0,0,1,NULL,NULL,1.79529039968043255801e+09);
INSERT INTO "jobs" VALUES(5,'00000000000000000000000000000005','running','{"model": "fashion-elliptical", "attacks": [{"name": "fgsm", "eps": ["8/255"]}], "seed": 0}','[{"name": "fashion-elliptical", "version": "1", "digest": "dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd"}]',3,300,'f5','a-key',1.79529039968457651142e+09,1.79529039968512558935e+09,NULL,100,300,'pgd',3.5,100,'host:1:bb',1.79529039968512558935e+09,1,1,0,NULL,NULL,NULL);
INSERT INTO "jobs" VALUES(6,'00000000000000000000000000000006','queued','{"model": "fashion-elliptical", "attacks": [{"name": "fgsm", "eps": ["8/255"]}], "seed": 0}','[{"name": "fashion-elliptical", "version": "1", "digest": "dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd"}]',3,360,'f6','b-key',1.79529039969254755972e+09,NULL,NULL,0,0,'',NULL,0,NULL,NULL,0,0,0,NULL,NULL,NULL);
CREATE INDEX jobs_by_status ON jobs (status, seq);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('jobs',6);
COMMIT;
PRAGMA user_version = 1;
